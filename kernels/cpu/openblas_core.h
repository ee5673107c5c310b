// The kernels that OpenBLAS chose for this processor.
#pragma once

namespace baton {

/// OpenBLAS takes SSE3 kernels on a processor that is newer than itself, a fifth of the speed. Where it did so, lets it
/// choose again, as if the user had set OPENBLAS_CORETYPE; a value that the user set stays. Always true, so that it can
/// initialise a constant before main, when no other thread runs.
bool choose_openblas_core();

}  // namespace baton
