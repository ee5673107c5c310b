#include "kernels/loss.h"
