// A step's batch as bytes, for the nodes that run it beside the leader. They compute what the
// leader computes and sample nothing, so a batch goes without slot_inits, masks and sampling; its
// lengths are resolved, and on CPUs its tokens.
//
// A page table is sent once: a slot whose table has the version of its last step sends the pages
// behind those that the other side has. Encoder and decoder therefore see the same steps in the
// same order. Neither is thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "seams/forward_batch.h"

namespace espalier::nodes {

class ByteReader;

// Copies of pages that precede the step: from[i] to to[i].
struct PageCopies {
  std::vector<PageId> from, to;
  bool empty() const { return from.empty(); }
};

class StepEncoder {
 public:
  // Valid until the next call. REQUIRES: the entries' prefix_len are resolved, and no entry has an
  // adapter, embedding spans or hidden states.
  std::string_view encode(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                          const PageCopies& copies);

 private:
  // What the other side has of a slot's table.
  struct SentTable {
    uint64_t version = 0;
    int32_t num_pages = 0;
  };
  void append_entry(const ForwardBatch& batch, const BatchEntry& entry);
  std::string out_;
  std::vector<SentTable> sent_;  // by slot
};

// What a batch may be; a decoder refuses the rest.
struct StepLimits {
  int32_t max_slots = 0;  // and entries of a step
  int32_t max_tokens = 0;
  int32_t vocab_size = 0;
  int32_t context_length = 0;
  int32_t page_size = 1;
  int32_t num_pages = 0;
  int32_t num_window_pages = 0;    // 0: the window's layers have no pages of their own
  bool tokens_from_slots = false;  // tokens may be kTokenFromSlot
  int32_t pages_of(int64_t tokens) const {
    return static_cast<int32_t>((tokens + page_size - 1) / page_size);
  }
  // Of an encoded step.
  size_t bytes_max() const;
};

class StepDecoder {
 public:
  explicit StepDecoder(const StepLimits& limits);

  // Takes any bytes: kDataLoss for those that are no step within the limits. Afterwards batch() and
  // copies() are the step's; every index in them is within its bounds.
  Status decode(std::string_view payload);
  const ForwardBatch& batch() const { return batch_; }
  const PageCopies& copies() const { return copies_; }

 private:
  struct Table {
    std::vector<PageId> pages, window_pages;
    uint64_t version = 0;
  };
  void read_entry(ByteReader& reader);
  void read_counts(ByteReader& reader, BatchEntry& entry) const;
  void read_tables(ByteReader& reader, BatchEntry& entry);
  void read_draft_samples(ByteReader& reader, BatchEntry& entry);

  const StepLimits limits_;
  ForwardBatch batch_;
  PageCopies copies_;
  std::vector<Table> tables_;  // by slot
};

}  // namespace espalier::nodes
