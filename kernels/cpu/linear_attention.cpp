#include "kernels/linear_attention.h"
