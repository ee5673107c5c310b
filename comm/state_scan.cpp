#include "comm/state_scan.h"
