#include "kernels/embedding.h"
