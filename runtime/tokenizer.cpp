#include "runtime/tokenizer.h"
