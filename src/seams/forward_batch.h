// One step of work for an executor: the one kind of batch there is. Prefill, chunk, decode and
// forced tokens are entries that differ in their numbers only. Plain data without thread safety;
// the scheduler owns it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "seams/kv_view.h"
#include "seams/sampling.h"

namespace espalier {

// Index of a running request in the executor's per-request tables: its last sampled token and its
// length (which the host may not know yet), its output counts for penalties. Assigned by the
// scheduler, reused only after the last step that names it is done.
using SlotId = int32_t;

// A LoRA adapter that the model has loaded, unique in an engine's life.
using AdapterId = int32_t;
inline constexpr AdapterId kNoAdapter = 0;

using SequenceId = uint64_t;  // unique in an engine's life, in order of arrival

// In token_ids: take the token that this entry's slot sampled last, in a step launched before.
inline constexpr TokenId kTokenFromSlot = -1;

// In BatchEntry::prefix_len: the entry continues where its slot's last step ended, which only the
// device knows while draft tokens of that step are being verified. Only executors whose
// takes_lengths_from_slots() is true take such entries; others fail them with kUnimplemented.
//
// The slot's length after a step is the number of tokens that are computed and accepted: for an
// entry without draft tokens prefix_len + num_query_tokens; else prefix_len + last_known() + 1 +
// the number of accepted draft tokens. A draft token is accepted if all before it are, it equals
// what was sampled behind the token before it, and a token was sampled behind it. kTokenFromSlot is
// then what was sampled behind the last accepted one, so draft tokens without a sample never are in
// a chain that the device continues. The true length returns in EntryResult::length.
//
// Of such an entry the scheduler states the most that the length can be (prefix_len_max), with
// pages for prefix_len_max + num_query_tokens tokens. `positions` and output_index are not read:
// the executor derives them from the slot's length and the number of tokens sampled so far.
inline constexpr int32_t kLengthFromSlot = -1;

// Ids from here on stand in prompts for rows of pictures: they are the cache's keys of what a
// position holds, in place of a token (engine/images/span_keys.h). No vocabulary reaches them.
inline constexpr TokenId kFirstSpanKey = 1 << 24;

// What an encoder makes of a picture: rows that stand in a prompt in place of tokens' embeddings.
// Immutable once made; requests, batches in flight and the cache of encoder outputs share it.
struct EncodedRows {
  int32_t num_rows = 0;
  int32_t width = 0;
  std::vector<float> values;  // [num_rows, width]; empty where `elements` has them
  // Of an encoder on a GPU: the rows in the decoder's type, in memory that devices copy from.
  std::shared_ptr<std::byte> elements;
  // Where rows have places in a grid for rotary embeddings (M-RoPE): its columns; 0: they have
  // positions like tokens.
  int32_t grid_columns = 0;
  // Where rows stand in prompts line by line, with a token behind each line: rows of a line; 0:
  // they are one run.
  int32_t line_rows = 0;
  // Of a video: rows of one grid, of which there are several one behind the other in time, and
  // rotary positions from one to the next; 0: a picture.
  int32_t frame_rows = 0;
  double frame_positions = 0;
  // Where a decoder reads pictures by cross attention: rows of a tile, of which there are whole
  // ones. The picture takes one position of a prompt, and its rows are keys and values. 0: a row
  // takes a position.
  int32_t tile_rows = 0;

  // Positions of a prompt that all rows take.
  int32_t num_tokens() const { return tile_rows > 0 ? 1 : num_rows; }

  // The first component of a grid's rotary positions, from the first row's; index: of the grid.
  int32_t frame_time(int32_t index) const { return static_cast<int32_t>(index * frame_positions); }
  // From the first row's rotary position to that of what follows the picture.
  int32_t num_positions() const {
    if (grid_columns == 0) return num_rows;
    const int32_t rows_each = frame_rows > 0 ? frame_rows : num_rows;
    const int32_t times = frame_rows > 0 ? frame_time(num_rows / frame_rows - 1) + 1 : 1;
    return std::max({rows_each / grid_columns, grid_columns, times});
  }
};

// Query tokens whose rotary positions are not their `positions`, for there are rows of a grid among
// or before them. Row r of a grid has the components (time, height, width) = position +
// (time, r / columns, r % columns); all components of a text's tokens rise together.
struct RotarySpan {
  int32_t token_begin = 0;  // in the batch's token_ids
  int32_t count = 0;
  int32_t position = 0;   // of the picture's row 0, or of the first of these tokens
  int32_t first_row = 0;  // of the grid
  int32_t columns = 0;    // of the grid; 0: text
  int32_t time = 0;       // of a video's grid, from its first one's
};

// Query tokens whose input rows are an encoder's; their token_ids are kFirstSpanKey or above.
struct EmbeddingSpan {
  int32_t token_begin = 0;  // in the batch's token_ids
  int32_t count = 0;
  int32_t first_row = 0;  // of `rows`; a prompt's chunk may begin within a picture
  std::shared_ptr<const EncodedRows> rows;  // shared with the request, which may end first
};

// Query tokens that see the same pictures by cross attention: a placeholder, or a text behind one.
struct CrossSpan {
  int32_t token_begin = 0;  // in the batch's token_ids
  int32_t count = 0;
  int32_t first_picture = 0;  // in cross_pictures
  int32_t num_pictures = 0;   // at least 1
};

// One request's part of a step: num_query_tokens new tokens after prefix_len cached ones.
struct BatchEntry {
  SlotId slot = -1;
  SequenceId sequence = 0;       // of the entry; executors do not read it
  int32_t num_query_tokens = 0;  // at least 1
  int32_t prefix_len = 0;        // tokens with keys and values in the pages, or kLengthFromSlot
  int32_t prefix_len_max = 0;    // the most that prefix_len can be; read with kLengthFromSlot only
  int32_t query_begin = 0;       // this entry's first entry in token_ids and positions
  int32_t page_begin = 0;        // its first entry in page_tables
  int32_t num_pages = 0;         // ceil((prefix_len_bound() + num_query_tokens) / page_size)
  // Names the contents of this entry's page table: while the version of a slot stays the same,
  // pages are only appended, so a device that keeps tables needs the new ones alone. 0: unknown.
  uint64_t table_version = 0;

  // Whether the last query token's logits are sampled into the slot. False for a chunk that is not
  // the prompt's last, and for prefill only (max_new_tokens 0).
  bool sample = false;
  bool has_mask = false;     // a grammar mask comes through Executor::provide_masks
  int32_t output_index = 0;  // which output token of its request this draws: the seed's counter

  AdapterId adapter = kNoAdapter;  // of all its query tokens

  // The last num_draft_tokens query tokens are draft tokens: a prediction of the request's next
  // output. EntryResult::token is sampled behind the token before them. Besides, one token is
  // sampled behind each of the draft tokens that ForwardBatch::draft_samples [draft_samples_begin,
  // + num_draft_samples) names, as output token output_index + 1 + the draft token's index, and
  // with a mask of its own behind the entry's. 0 where Executor::draft_samples_max() is 0.
  int32_t num_draft_tokens = 0;
  int32_t draft_samples_begin = 0, num_draft_samples = 0;
  int32_t last_known() const { return num_query_tokens - 1 - num_draft_tokens; }  // a query token
  // Whether its one known token is computed apart from draft tokens: what shared prefixes may name.
  bool has_single_known_row() const {
    return last_known() == 0 && (num_draft_tokens == 0 || num_draft_samples > 0);
  }
  int32_t prefix_len_bound() const {
    return prefix_len == kLengthFromSlot ? prefix_len_max : prefix_len;
  }

  // How many tokens the executor's draft head predicts behind what this entry samples
  // (EntryResult::chain). 0: it computes its own keys and values of the entry's tokens alone, so
  // that it can draft later; kNoChain: not even these. Read where Executor::chain_max() is above 0.
  static constexpr int32_t kNoChain = -1;
  int32_t chain_length = kNoChain;
  TokenId next_token = -1;  // the known token behind an entry that does not sample; -1: none

  // Log-probabilities of this entry's prompt tokens: for query tokens [input_logprob_begin,
  // num_query_tokens) the log-probability of input_logprob_targets[i - input_logprob_begin] (the
  // NEXT prompt token) is wanted. -1: none. The prompt's last token has no target.
  int32_t input_logprob_begin = -1;
  std::vector<TokenId> input_logprob_targets;

  // Of a text to embed: the last hidden states of query tokens [pooled_begin, num_query_tokens) are
  // added to the mean that the slot keeps. -1: none.
  int32_t pooled_begin = -1;
  bool pooled_end = false;  // the text ends with this entry, and its vector is returned

  // Of query tokens [hidden_begin, num_query_tokens) these hidden states are returned
  // (SamplingSpec::hidden_layers, which the slot's sampling keeps alive). -1: none. Only models
  // whose ModelInfo::returns_hidden_states is true take such entries.
  int32_t hidden_begin = -1;
  std::span<const int32_t> hidden_layers;
};

// Sets a slot up for a request before its first entry (and again after a retraction).
struct SlotInit {
  SlotId slot = -1;
  std::shared_ptr<const SamplingSpec> sampling;  // shared with the request, which may end first
  // Only where the sampling has penalties, else empty: the prompt (for the repetition penalty) and
  // the output so far (for all of them).
  std::vector<TokenId> prompt_ids;
  std::vector<TokenId> output_ids;
};

// Positions [begin, end) that several entries with has_single_known_row() have in the same pages. A
// segment is as long as exactly these `num_entries` entries share it. A device may read its keys
// and values once for all of them (cascade attention) or ignore the segment.
struct SharedPrefixSegment {
  int32_t begin = 0, end = 0;  // within the entries' cached prefixes
  int32_t parent = -1;         // the segment that ends at `begin`, of these entries and more; or -1
  int32_t first_entry = 0;     // in shared_entries
  int32_t num_entries = 0;     // at least 2
};

// Made by the scheduler, read by the executor; lives until its step has been waited for. Vectors
// keep their capacity from step to step.
struct ForwardBatch {
  uint64_t step = 0;                 // 1, 2, 3 ...: the epoch by which pages are reclaimed
  std::vector<SlotInit> slot_inits;  // applied before the entries
  std::vector<BatchEntry> entries;
  std::vector<TokenId> token_ids;   // [num_tokens], entry after entry; or kTokenFromSlot
  std::vector<int32_t> positions;   // [num_tokens]
  std::vector<PageId> page_tables;  // entry.num_pages each from entry.page_begin; gaps between
  // The same for layers of kind kWindowPages, where these have pages of their own. Values for pages
  // that the window has passed are undefined. Empty: page_tables is valid for all layers.
  std::vector<PageId> window_page_tables;
  // Empty unless the scheduler is configured to find them; parents before their children.
  std::vector<SharedPrefixSegment> shared_prefixes;
  std::vector<int32_t> shared_entries;  // indices into entries, rising within each shared prefix
  // Of all entries, rising, without overlaps. Empty where the executor has no encoder of pictures.
  std::vector<EmbeddingSpan> embedding_spans;
  // Rising, without overlaps; of entries whose prompts have pictures with grids alone.
  std::vector<RotarySpan> rotary_spans;
  // Of models with cross attention, instead of embedding_spans: rising, without overlaps. Tokens
  // that see no picture are in none.
  std::vector<CrossSpan> cross_spans;
  std::vector<std::shared_ptr<const EncodedRows>> cross_pictures;
  // Indices among their entry's draft tokens, rising within each entry.
  std::vector<int32_t> draft_samples;
  // With data-parallel attention: what each rank computes attention of, as a batch of its own whose
  // slots and pages are the rank's; some may have no entries. This batch is then what join_ranks()
  // (seams/rank_batches.h) makes of them, without pages. Else empty.
  std::vector<ForwardBatch> ranks;

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  void clear_cross() {
    cross_spans.clear();
    cross_pictures.clear();
  }
  void clear() {
    slot_inits.clear();
    entries.clear();
    token_ids.clear();
    positions.clear();
    page_tables.clear();
    window_page_tables.clear();
    shared_prefixes.clear();
    shared_entries.clear();
    embedding_spans.clear();
    rotary_spans.clear();
    clear_cross();
    draft_samples.clear();
  }
};

}  // namespace espalier
