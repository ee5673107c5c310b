#include "runtime/checkpoint.h"
