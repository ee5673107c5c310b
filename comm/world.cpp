#include "comm/world.h"
