// placeholder until the model lands
#include "runtime/tensor.h"
