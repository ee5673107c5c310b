#include "comm/group.h"
