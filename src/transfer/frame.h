// The protocol by which a decode server fetches a prompt's keys and values from the prefill server
// that computed them: frames over a byte stream. docs/disaggregation.md has the sequence.
//
//   decode                                     prefill
//            <- kChallenge  (version, nonce)
//   kHello  ->  (nonce, room, layout, prompt, cached tokens, proof of the shared token)
//            <- kAccept     (proof of the shared token)           or kFailed
//            <- kStaging    (the handle of staging memory, where the greeting names its kind)
//   kMapped ->  (whether it could be mapped)
//            <- kPages ..., kLogprobs ..., kWait ... in any order, or kFailed;
//               kStaged ... instead of kPages where staging memory is mapped
//   kRead   ->  (for each kStaged: it has been copied)
//            <- kFirst      (the first token, its log-probabilities)
//   kTaken  ->
//
// A frame is 4 bytes of length, 1 byte of type and so many bytes of payload. Integers are
// big-endian. A decoder takes any bytes: what is malformed is a Status, never an abort, and no
// length in it makes it allocate more than the frame itself has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "seams/page_name.h"
#include "seams/sampling.h"
#include "seams/staged_pages.h"
#include "seams/vocab_view.h"

namespace espalier::transfer {

inline constexpr uint32_t kProtocolVersion = 2;
inline constexpr size_t kFrameHeaderBytes = 5;
inline constexpr size_t kControlBytesMax = size_t{64} << 10;   // of frames without pages
inline constexpr size_t kLogprobBytesMax = size_t{16} << 20;   // of one kLogprobs or kFirst
inline constexpr size_t kPagesFrameBytes = size_t{512} << 10;  // of pages, unless one is larger

enum class FrameType : uint8_t {
  kChallenge = 1,
  kHello,
  kAccept,
  kFailed,
  kPages,
  kWait,
  kLogprobs,
  kFirst,
  kTaken,
  kStaging,
  kMapped,
  kStaged,
  kRead,
};

using Nonce = std::array<uint8_t, 16>;
using Proof = std::array<uint8_t, 32>;

// Which prompt: the request's bootstrap_room and, of its n samples, which.
struct RoomKey {
  uint64_t room = 0;
  uint32_t index = 0;
  friend auto operator<=>(const RoomKey&, const RoomKey&) = default;
};

// What both sides must agree on for a page's bytes to mean the same.
struct KvShape {
  std::string model;       // fingerprint of the weights
  std::string layout;      // element type, page size, layers
  std::string computer;    // what decides the order of sums: instruction set, ranks
  uint32_t page_size = 0;  // tokens
  uint64_t page_bytes = 0;
  friend bool operator==(const KvShape&, const KvShape&) = default;
};

// Ok where they are equal; else kFailedPrecondition, which names what differs and what to do.
Status check_shapes(const KvShape& prefill, const KvShape& decode);

struct Challenge {
  uint32_t version = kProtocolVersion;
  Nonce nonce{};
};

struct Hello {
  uint32_t version = kProtocolVersion;
  Nonce nonce{};
  RoomKey key;
  KvShape shape;
  PageName prompt;          // the chained name of the whole prompt, its last page perhaps in part
  uint32_t num_tokens = 0;  // of which the prefill computes keys and values
  uint32_t num_cached = 0;  // leading pages that are not to be sent
  std::string maps;         // StagingHandle::kind of memory that can be mapped; empty: none
};

struct Failure {
  StatusCode code = StatusCode::kInternal;
  std::string message;
};

// Pages [first, first + bytes / page_bytes) of the prompt.
struct PagesView {
  uint32_t first = 0;
  uint64_t checksum = 0;  // of the bytes
  std::span<const std::byte> bytes;
};

// Planes of pages [first, first + num_pages()) of the prompt, in mapped staging memory. All planes
// of some pages come before the pages behind them.
struct StagedView {
  uint32_t first = 0;
  PlaneRange planes;
  bool completes = false;  // the last planes of these pages
  std::vector<StagedPart> parts;

  uint32_t num_pages() const;
};

// Of positions [first, first + logprobs.size()): prompt tokens, and tokens that a grammar forced.
struct InputLogprobs {
  uint32_t first = 0;
  std::vector<TokenLogprobs> logprobs;
};

// What was sampled behind the tokens.
struct FirstToken {
  TokenId token = 0;
  uint32_t num_tokens = 0;     // whose keys and values were sent or cached
  uint32_t cached_tokens = 0;  // of the prompt, in the prefill server's cache
  TokenLogprobs logprobs;
};

// Payloads.
std::string encode(const Challenge& challenge);
std::string encode(const Hello& hello);
std::string encode(const Failure& failure);
std::string encode(const InputLogprobs& logprobs);
std::string encode(const FirstToken& first);
std::string encode(const StagingHandle& handle);
std::string encode(const StagedView& staged);
std::string encode_pages_header(uint32_t first, std::span<const std::byte> bytes);
Result<Challenge> decode_challenge(std::string_view payload);
Result<Hello> decode_hello(std::string_view payload);
Result<Failure> decode_failure(std::string_view payload);
Result<InputLogprobs> decode_logprobs(std::string_view payload);
Result<FirstToken> decode_first(std::string_view payload);
Result<StagingHandle> decode_staging(std::string_view payload);
// kDataLoss also for counts below zero, and for more pages than 32 bits count.
Result<StagedView> decode_staged(std::string_view payload);
// kDataLoss where the checksum does not match the bytes.
Result<PagesView> decode_pages(std::string_view payload);

Nonce draw_nonce();  // unpredictable

// HMAC-SHA256 (RFC 2104) of the texts one behind the other, by the shared token.
Proof prove(std::string_view token, std::initializer_list<std::string_view> texts);
// Compared in a time that does not depend on where they differ.
bool equal(const Proof& a, std::string_view b);

// The bytes of a nonce or a proof.
template <size_t N>
std::string_view text_of(const std::array<uint8_t, N>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), N};
}

}  // namespace espalier::transfer
