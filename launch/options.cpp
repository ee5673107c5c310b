#include "runtime/config.h"
