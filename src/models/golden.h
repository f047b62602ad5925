// For tests of this room: the golden models of tests/golden/models, memory for keys and values with
// scattered pages, and a driver that runs sequences through a model in any cut and company.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "models/weight_source.h"
#include "tensor/work_pool.h"

namespace espalier::golden {

struct Sequence {
  std::vector<TokenId> tokens;
  std::vector<float> logits;  // [tokens, vocab], of the reference
};
struct Greedy {
  std::vector<TokenId> prompt;
  std::vector<TokenId> tokens;  // 64
  std::vector<float> margins;   // the best logit minus the second
};

// One folder as tools/goldens/make_goldens.py writes it.
struct Golden {
  std::filesystem::path folder;
  DecoderSpec spec;
  std::vector<Sequence> sequences;
  std::vector<Greedy> greedy;
  float spread = 0;  // the largest of all reference logits minus the smallest
};
std::vector<std::string> names();
Golden read(const std::string& name);

// A folder of tests/golden/pooled: texts and the vectors that transformers makes of them.
struct Pooled {
  std::vector<TokenId> tokens;
  std::vector<float> vector;
};
struct PooledGolden {
  std::filesystem::path folder;
  std::vector<Pooled> texts;
};
PooledGolden read_pooled(const std::filesystem::path& folder);

// A folder of tests/golden/texts: texts, the types of their tokens, and what transformers makes of
// them: vectors, scores, or a vector of each token.
struct EncodedText {
  std::vector<TokenId> tokens;
  std::vector<int32_t> types;
  std::vector<float> vector;
};
std::vector<EncodedText> read_encoded_texts(const std::filesystem::path& folder);

// tests/golden/insides, of some of the models: a greedy answer of 8 tokens, and the hidden states
// of its prompt and of all its tokens but the last.
struct HiddenStates {
  std::vector<TokenId> prompt, output;
  std::vector<float> states;  // [layers + 1, prompt + output - 1, hidden]
};
HiddenStates read_hidden_states(const std::string& name);

// Tokens, and whether each of the vocabulary is banned behind them with no_repeat_ngram_size
// `size`.
struct BannedNgrams {
  std::vector<TokenId> tokens;
  int32_t size = 0;
  std::vector<int32_t> banned;
};
std::vector<BannedNgrams> read_banned_ngrams();
// The greedy answer of the same prompt with no_repeat_ngram_size `size`, 2 or 3.
std::vector<TokenId> read_answer_without_repeats(const std::string& name, int32_t size);

// tests/golden/beams, of some of the models: beam searches and what transformers finds.
struct BeamSearchCase {
  std::vector<TokenId> prompt, stops;
  std::vector<float> options;                 // as tools/goldens/make_beam_goldens.py lists them
  std::vector<std::vector<TokenId>> answers;  // the best first
  std::vector<float> scores;
};
std::vector<BeamSearchCase> read_beam_searches(const std::string& name);

// tests/golden/control, of some of the models: greedy answers with a control vector, whose file
// lies beside them.
struct ControlledAnswer {
  float scale = 0;
  int32_t first_layer = 0, last_layer = 0;
  std::vector<TokenId> prompt, tokens;
  std::vector<float> logprobs;  // of `tokens`
};
std::vector<ControlledAnswer> read_controlled_answers(const std::string& name);

// Pages in a shuffled order, and a view of them.
class KvMemory {
 public:
  KvMemory(const ModelInfo& info, KvType type, int32_t page_size, int32_t num_tokens, Rng& rng);
  const KvView& view() const { return view_; }
  PageId take_page();

 private:
  KvView view_;
  std::vector<std::vector<uint32_t>> planes_;  // filled with NaN: nobody may read what none wrote
  std::vector<PageId> free_;
};

// A sequence's place in KvMemory, and the logits that came for its positions.
struct Track {
  std::vector<TokenId> tokens;  // all that are to be run
  int32_t done = 0;             // of them
  std::vector<PageId> pages;
  std::map<int32_t, std::vector<float>> logits;  // by position
  AdapterId adapter = kNoAdapter;
  std::vector<EmbeddingSpan> spans;      // token_begin: in `tokens`
  std::vector<RotarySpan> rotary_spans;  // the same
};

// What a step does with one track.
struct Piece {
  Track* track = nullptr;
  int32_t count = 0;  // tokens
  enum class Want { kNothing, kLast, kAll } want = Want::kAll;
};

// Runs one step and files its logits.
void run_step(Model& model, KvMemory& kv, const std::vector<Piece>& pieces);

// Whole sequences, each in pieces of at most `chunk` tokens, all of them side by side or one after
// the other. Returns all logits, [tokens, vocab] of each.
std::vector<std::vector<float>> run_all(Model& model,
                                        const std::vector<std::vector<TokenId>>& input, KvType type,
                                        int32_t page_size, int32_t chunk, bool together);

// The golden's own logits through `model`, in one prefill each: of each position the largest error,
// in units of golden.spread. A NaN stays one.
std::vector<float> row_errors(Model& model, const Golden& golden, KvType type);
float max_error(Model& model, const Golden& golden, KvType type);

// The selection of experts is a jump: where two are nearly as good, bfloat16's rounding may take
// the other, and the row, and those that see it, are another model's. float32 has to agree
// everywhere; bfloat16 in most rows then.
bool may_jump(DType type, const Golden& golden);
inline constexpr double kRowsThatAgree = 0.6;
inline constexpr double kTokensThatAgree = 0.9;
// The largest of rows' errors, or of those that have to agree. A NaN stays one.
float largest_error(std::vector<float> row_errors, bool may_jump);

}  // namespace espalier::golden
