// The learning rate of a step: pure arithmetic.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/config.h"

namespace baton {

/// step counts from 1. Linear warm-up to lr over `warmup` steps, then to lr_min by the schedule: cosine, linear,
/// constant (stays at lr) or wsd (constant, then linear over the last decay_fraction of all steps).
inline double learning_rate(const TrainConfig& c, int64_t step) {
  if (step <= c.warmup) return c.lr * static_cast<double>(step) / static_cast<double>(c.warmup);
  double done = 1;  // part of the decay that is over
  if (c.schedule == "constant") return c.lr;
  if (c.schedule == "wsd") {
    const double decay_steps = std::max(1.0, c.decay_fraction * static_cast<double>(c.steps));
    done = 1 - static_cast<double>(c.steps - step) / decay_steps;
  } else if (c.steps > c.warmup) {
    done = static_cast<double>(step - c.warmup) / static_cast<double>(c.steps - c.warmup);
  }
  done = std::clamp(done, 0.0, 1.0);
  const double left = c.schedule == "cosine" ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
  return c.lr_min + (c.lr - c.lr_min) * left;
}

}  // namespace baton
