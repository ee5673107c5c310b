#include "runtime/hdf5_file.h"
