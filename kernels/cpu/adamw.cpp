#include "kernels/adamw.h"
