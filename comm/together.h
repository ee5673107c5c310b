// The body of together(), see group.h.
#pragma once

#include <optional>

#include "comm/group.h"

namespace baton {

/// Every rank gives its error or none; every rank gets the lowest failing rank's error, thrown. Collective.
void throw_agreed(Group& group, const std::optional<Error>& mine);

template <class F>
void together(Group& group, F&& f) {
  std::optional<Error> mine;
  try {
    f();
  } catch (const LostRank&) {
    throw;
  } catch (const Error& e) {
    mine = e;
  } catch (const std::exception& e) {
    mine = Error(ExitCode::kTransport, e.what());
  }
  throw_agreed(group, mine);
}

}  // namespace baton
