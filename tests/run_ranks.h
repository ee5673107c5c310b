// Simulated ranks: f runs once a rank, each on its own thread with its own Group. Rethrows what the lowest rank threw.
#pragma once

#include <omp.h>

#include <exception>
#include <functional>
#include <thread>

#include "comm/group.h"

namespace baton {

/// delay_seed as in make_local_groups. The deadline keeps a hanging test short.
inline void run_ranks(int num_ranks, const std::function<void(Group&)>& f, uint64_t delay_seed = 0) {
  auto groups = make_local_groups(num_ranks, delay_seed);
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < groups.size(); ++r)
    threads.emplace_back([&f, &error = errors[r], group = std::move(groups[r])]() mutable {
      omp_set_num_threads(1);  // of this thread: the ranks share the cores
      group->set_deadline(60);
      try {
        f(*group);
      } catch (...) {
        error = std::current_exception();
      }
      group.reset();  // the others learn that this rank has left
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace baton
