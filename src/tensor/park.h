// Waiting for another thread: a short spin, then sleep in the kernel. For threads that meet many
// times a millisecond while they work and must not use a processor while they do not.
#pragma once

#include <atomic>
#include <cstdint>

namespace espalier {

// Waits until `word` is no longer `old`: spins for at most 50 microseconds, then sleeps. `parked`
// counts the sleepers of the word, so that a waker makes no system call where there is none; it
// begins at 0 and belongs to one word.
void wait_for_change(std::atomic<uint32_t>& word, uint32_t old, std::atomic<uint32_t>& parked);

// Wakes all who wait for a word that the caller has changed (seq_cst) before the call.
void wake_all(std::atomic<uint32_t>& word, std::atomic<uint32_t>& parked);

}  // namespace espalier
