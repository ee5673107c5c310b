// What every transport must do, run by tests/sim over threads and by tests/dist over MPI. Each check is collective over
// its group and throws where this rank saw something wrong.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/group.h"

namespace baton::checks {

/// Sums, maxima and minima of integers held in each type, exactly; random floats, the same bits on every rank and
/// twice.
void all_reduce_is_exact(Group& group);
void broadcast_and_gather(Group& group);
/// Messages of many sizes between all pairs, waited for in the reverse of their order.
void order_is_kept(Group& group, uint64_t seed);
void zero_bytes_send_nothing(Group& group);
/// A tensor of this many bytes from rank 0 to the last rank, and as much reduced.
void large_messages(Group& group, int64_t bytes);
/// The scan against the serial composition h -> G * h + S, bitwise, in both directions, dtypes and several layers; and
/// the bytes it sends.
void scan_is_serial_composition(Group& group);
/// The strategies other than chain against the serial composition, whether decays are sent or known, hierarchical with
/// nodes of every size that divides the group's; and the bytes they send.
void strategies_are_serial_composition(Group& group);
/// num_scans scans by each strategy, in each of which every rank is late by up to max_delay_s: the bits of scans in
/// which none is.
void delays_change_no_bit(Group& group, int num_scans, double max_delay_s);
/// In a chain of shards that forget, the last rank gets its state although the first has not begun.
void a_shard_that_forgets_sends_first(Group& group);
void wrap_moves_the_last_to_the_first(Group& group);
void together_agrees(Group& group);

// On groups that are thrown away afterwards, since messages stay behind. first_rank: the name that the transport gives
// to rank 0 of the pair in its messages.
void shapes_that_differ_are_refused(Group& pair);
void too_little_scratch_is_refused(Group& pair);
void a_wait_ends_at_its_deadline(Group& pair, int first_rank);
void a_message_of_another_size_is_refused(Group& pair, int first_rank);

/// Calls f, and throws unless f throws an Error(kTransport) whose message holds every one of `words`.
void expect_refusal(const std::function<void()>& f, const std::vector<std::string>& words);

}  // namespace baton::checks
