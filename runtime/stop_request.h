// A request to stop that came as a signal: SIGUSR1 (mpirun passes it on) or SIGTERM (as srun and scancel send it).
#pragma once

namespace baton {

/// Installs the handlers, once, in main.
void install_stop_handlers();

/// Seconds since the first request, or a negative number where there is none.
double seconds_since_stop_request();

}  // namespace baton
