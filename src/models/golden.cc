#include "models/golden.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "checkpoint/convert.h"
#include "checkpoint/json_object.h"
#include "checkpoint/safetensors.h"
#include "models/families/family.h"

namespace espalier::golden {
namespace {

const std::filesystem::path kRoot = "tests/golden/models";

const CheckpointTensor* find(const SafetensorsFile& file, const std::string& name) {
  for (const CheckpointTensor& tensor : file.tensors()) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
  const CheckpointTensor* tensor = find(file, name);
  ESP_CHECK(tensor != nullptr, "no {}", name);
  std::vector<float> values(static_cast<size_t>(tensor->num_elements()));
  copy_as_float(*tensor, 0, values);
  return values;
}

std::vector<TokenId> ids(const SafetensorsFile& file, const std::string& name) {
  const CheckpointTensor* tensor = find(file, name);
  ESP_CHECK(tensor != nullptr && tensor->dtype_name == "I32", "no {}", name);
  std::vector<TokenId> values(static_cast<size_t>(tensor->num_elements()));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

float range(const std::vector<Sequence>& sequences) {
  float least = sequences[0].logits[0], most = least;
  for (const Sequence& sequence : sequences) {
    const auto [low, high] = std::ranges::minmax(sequence.logits);
    least = std::min(least, low);
    most = std::max(most, high);
  }
  return most - least;
}

// Each picture up to the next one is seen with those right in front of it.
void add_cross_spans(ForwardBatch& batch, const Track& track, int32_t end) {
  size_t run = 0;  // of the pictures that follow each other
  for (size_t i = 0; i < track.spans.size(); ++i) {
    const int32_t begin = track.spans[i].token_begin;
    if (i > 0 && track.spans[i - 1].token_begin + 1 < begin) run = i;
    const int32_t next = i + 1 < track.spans.size() ? track.spans[i + 1].token_begin : end;
    const int32_t first = std::max(begin, track.done), last = std::min(next, end);
    if (first >= last) continue;
    batch.cross_spans.push_back({.token_begin = batch.num_tokens() + first - track.done,
                                 .count = last - first,
                                 .first_picture = static_cast<int32_t>(batch.cross_pictures.size()),
                                 .num_pictures = static_cast<int32_t>(i + 1 - run)});
    for (size_t at = run; at <= i; ++at) batch.cross_pictures.push_back(track.spans[at].rows);
  }
}

// The spans' parts among the next `count` tokens of the track, for a batch that has so many
// already.
void add_spans(ForwardBatch& batch, const Track& track, int32_t count) {
  const int32_t end = track.done + count;
  if (!track.spans.empty() && track.spans[0].rows->tile_rows > 0)
    return add_cross_spans(batch, track, end);
  for (const EmbeddingSpan& span : track.spans) {
    const int32_t first = std::max(track.done, span.token_begin);
    const int32_t last = std::min(end, span.token_begin + span.count);
    if (first >= last) continue;
    batch.embedding_spans.push_back({.token_begin = batch.num_tokens() + first - track.done,
                                     .count = last - first,
                                     .first_row = span.first_row + first - span.token_begin,
                                     .rows = span.rows});
  }
}

void add_rotary_spans(ForwardBatch& batch, const Track& track, int32_t count) {
  const int32_t end = track.done + count;
  for (RotarySpan span : track.rotary_spans) {
    const int32_t first = std::max(span.token_begin, track.done);
    const int32_t last = std::min(span.token_begin + span.count, end);
    if (first >= last) continue;
    (span.columns == 0 ? span.position : span.first_row) += first - span.token_begin;
    span.token_begin = batch.num_tokens() + first - track.done;
    span.count = last - first;
    batch.rotary_spans.push_back(span);
  }
}

}  // namespace

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Golden read(const std::string& name) {
  Golden golden;
  golden.folder = kRoot / name;
  const auto config = JsonObject::read(golden.folder / "config.json");
  ESP_CHECK(config.has_value(), "{}", config.error().message());
  auto spec = make_decoder_spec(*config);
  ESP_CHECK(spec.has_value(), "{}", spec.error().message());
  golden.spec = *std::move(spec);
  const auto file = SafetensorsFile::open(golden.folder / "reference.safetensors");
  ESP_CHECK(file.has_value(), "{}", file.error().message());
  for (int i = 0; find(*file, fmt::format("prompt_{}", i)) != nullptr; ++i) {
    golden.sequences.push_back(
        {ids(*file, fmt::format("prompt_{}", i)), floats(*file, fmt::format("logits_{}", i))});
  }
  for (int i = 0; find(*file, fmt::format("greedy_prompt_{}", i)) != nullptr; ++i) {
    golden.greedy.push_back({ids(*file, fmt::format("greedy_prompt_{}", i)),
                             ids(*file, fmt::format("greedy_tokens_{}", i)),
                             floats(*file, fmt::format("greedy_margin_{}", i))});
  }
  golden.spread = range(golden.sequences);
  return golden;
}

namespace {
SafetensorsFile open_inside(const std::string& file) {
  auto opened = SafetensorsFile::open("tests/golden/insides/" + file + ".safetensors");
  ESP_CHECK(opened.has_value(), "{}", opened.error().message());
  return *std::move(opened);
}
}  // namespace

HiddenStates read_hidden_states(const std::string& name) {
  const SafetensorsFile file = open_inside("hidden_states/" + name);
  return {ids(file, "prompt"), ids(file, "output"), floats(file, "states")};
}

std::vector<BannedNgrams> read_banned_ngrams() {
  const SafetensorsFile file = open_inside("no_repeat_ngram");
  std::vector<BannedNgrams> cases;
  for (int i = 0; find(file, fmt::format("tokens_{}", i)) != nullptr; ++i)
    cases.push_back({ids(file, fmt::format("tokens_{}", i)),
                     ids(file, fmt::format("size_{}", i)).at(0),
                     ids(file, fmt::format("banned_{}", i))});
  return cases;
}

std::vector<TokenId> read_answer_without_repeats(const std::string& name, int32_t size) {
  return ids(open_inside("no_repeat_ngram"), fmt::format("{}.{}", name, size));
}

std::vector<BeamSearchCase> read_beam_searches(const std::string& name) {
  const auto file = SafetensorsFile::open("tests/golden/beams/" + name + ".safetensors");
  ESP_CHECK(file.has_value(), "{}", file.error().message());
  std::vector<BeamSearchCase> cases;
  for (int i = 0; find(*file, fmt::format("prompt_{}", i)) != nullptr; ++i) {
    BeamSearchCase& one = cases.emplace_back();
    one.prompt = ids(*file, fmt::format("prompt_{}", i));
    one.stops = ids(*file, fmt::format("stops_{}", i));
    one.options = floats(*file, fmt::format("options_{}", i));
    one.scores = floats(*file, fmt::format("scores_{}", i));
    const std::vector<TokenId> tokens = ids(*file, fmt::format("tokens_{}", i));
    const auto longest = static_cast<std::ptrdiff_t>(tokens.size() / one.scores.size());
    for (auto row = tokens.begin(); row != tokens.end(); row += longest)
      std::erase(one.answers.emplace_back(row, row + longest), -1);
  }
  return cases;
}

std::vector<ControlledAnswer> read_controlled_answers(const std::string& name) {
  const auto file = SafetensorsFile::open("tests/golden/control/" + name + ".answers.safetensors");
  ESP_CHECK(file.has_value(), "{}", file.error().message());
  std::vector<ControlledAnswer> out;
  for (int i = 0; find(*file, fmt::format("prompt_{}", i)) != nullptr; ++i) {
    const std::vector<float> use = floats(*file, fmt::format("use_{}", i));
    out.push_back({.scale = use[0],
                   .first_layer = static_cast<int32_t>(use[1]),
                   .last_layer = static_cast<int32_t>(use[2]),
                   .prompt = ids(*file, fmt::format("prompt_{}", i)),
                   .tokens = ids(*file, fmt::format("tokens_{}", i)),
                   .logprobs = floats(*file, fmt::format("logprobs_{}", i))});
  }
  return out;
}

PooledGolden read_pooled(const std::filesystem::path& folder) {
  PooledGolden golden{folder, {}};
  const auto file = SafetensorsFile::open(folder / "reference.safetensors");
  ESP_CHECK(file.has_value(), "{}", file.error().message());
  for (int i = 0; find(*file, fmt::format("prompt_{}", i)) != nullptr; ++i) {
    golden.texts.push_back(
        {ids(*file, fmt::format("prompt_{}", i)), floats(*file, fmt::format("vector_{}", i))});
  }
  return golden;
}

std::vector<EncodedText> read_encoded_texts(const std::filesystem::path& folder) {
  const auto file = SafetensorsFile::open(folder / "reference.safetensors");
  ESP_CHECK(file.has_value(), "{}", file.error().message());
  std::vector<EncodedText> texts;
  for (int i = 0; find(*file, fmt::format("ids_{}", i)) != nullptr; ++i) {
    texts.push_back({ids(*file, fmt::format("ids_{}", i)), ids(*file, fmt::format("types_{}", i)),
                     floats(*file, fmt::format("vector_{}", i))});
  }
  return texts;
}

KvMemory::KvMemory(const ModelInfo& info, KvType type, int32_t page_size, int32_t num_tokens,
                   Rng& rng) {
  view_.page_size = page_size;
  KvView::Layer layer{.kind = info.kv_planes == 1 ? KvLayerKind::kLatent : KvLayerKind::kPages,
                      .type = type,
                      .num_pages = (num_tokens + page_size - 1) / page_size,
                      .num_kv_heads = info.num_kv_heads,
                      .head_dim = info.head_dim};
  layer.set_dense_strides(page_size);
  const auto words = static_cast<size_t>(layer.plane_bytes() / 4 + 1);
  for (int32_t i = 0; i < info.num_kv_layers(); ++i) {
    for (int plane = 0; plane < info.kv_planes; ++plane) planes_.emplace_back(words, ~0u);
  }
  for (int32_t i = 0; i < info.num_kv_layers(); ++i) {
    const auto at = static_cast<size_t>(info.kv_planes * i);
    layer.k = planes_[at].data();
    layer.v = planes_[at + static_cast<size_t>(info.kv_planes) - 1].data();
    view_.layers.push_back(layer);
  }
  if (info.draft_kv) {
    layer.num_kv_heads = info.draft_kv->num_kv_heads;
    layer.head_dim = info.draft_kv->head_dim;
    layer.set_dense_strides(page_size);
    const auto of_head = static_cast<size_t>(layer.plane_bytes() / 4 + 1);
    for (int32_t i = 0; i < info.draft_kv->num_layers; ++i) {
      layer.k = layer.v = planes_.emplace_back(of_head, ~0u).data();
      if (info.kv_planes == 2) layer.v = planes_.emplace_back(of_head, ~0u).data();
      view_.layers.push_back(layer);
    }
  }
  free_.resize(static_cast<size_t>(layer.num_pages));
  std::iota(free_.begin(), free_.end(), 0);
  std::shuffle(free_.begin(), free_.end(), rng);
}

PageId KvMemory::take_page() {
  ESP_CHECK(!free_.empty());
  const PageId page = free_.back();
  free_.pop_back();
  return page;
}

void run_step(Model& model, KvMemory& kv, const std::vector<Piece>& pieces) {
  const int32_t page_size = kv.view().page_size;
  ForwardBatch batch;
  for (const Piece& piece : pieces) {
    Track& track = *piece.track;
    BatchEntry entry;
    entry.slot = static_cast<SlotId>(batch.entries.size());
    entry.num_query_tokens = piece.count;
    entry.adapter = track.adapter;
    entry.prefix_len = track.done;
    entry.query_begin = batch.num_tokens();
    entry.page_begin = static_cast<int32_t>(batch.page_tables.size());
    entry.num_pages = (track.done + piece.count + page_size - 1) / page_size;
    while (std::ssize(track.pages) < entry.num_pages) track.pages.push_back(kv.take_page());
    batch.page_tables.insert(batch.page_tables.end(), track.pages.begin(), track.pages.end());
    entry.sample = piece.want != Piece::Want::kNothing;
    if (piece.want == Piece::Want::kAll && piece.count > 1) {
      entry.input_logprob_begin = 0;
      entry.input_logprob_targets.assign(static_cast<size_t>(piece.count - 1), 0);
    }
    add_spans(batch, track, piece.count);
    add_rotary_spans(batch, track, piece.count);
    for (int32_t i = 0; i < piece.count; ++i) {
      batch.token_ids.push_back(track.tokens.at(static_cast<size_t>(track.done + i)));
      batch.positions.push_back(track.done + i);
    }
    batch.entries.push_back(std::move(entry));
  }
  const auto sink = [&](int32_t entry, int32_t target, std::span<const float> logits) {
    const Piece& piece = pieces.at(static_cast<size_t>(entry));
    piece.track->logits[piece.track->done + target].assign(logits.begin(), logits.end());
  };
  const ForwardOutput output = model.forward(batch, batch.token_ids, kv.view(), sink);
  const auto vocab = static_cast<size_t>(model.info().vocab_size);
  const float* row = output.sample_logits.data();
  for (const Piece& piece : pieces) {
    piece.track->done += piece.count;
    if (piece.want == Piece::Want::kNothing) continue;
    piece.track->logits[piece.track->done - 1].assign(row, row + vocab);
    row += vocab;
  }
  ESP_CHECK(row == output.sample_logits.data() + output.sample_logits.size());
}

std::vector<std::vector<float>> run_all(Model& model,
                                        const std::vector<std::vector<TokenId>>& input, KvType type,
                                        int32_t page_size, int32_t chunk, bool together) {
  Rng rng(7);
  int32_t tokens = 0;
  for (const auto& sequence : input) tokens += static_cast<int32_t>(sequence.size()) + page_size;
  ESP_CHECK(model.reserve(tokens, static_cast<int32_t>(input.size())).ok());
  KvMemory kv(model.info(), type, page_size, tokens, rng);
  std::vector<Track> tracks;
  for (const auto& sequence : input) tracks.push_back({sequence, 0, {}, {}});

  const auto next_piece = [&](Track& track) {
    const int32_t left = static_cast<int32_t>(track.tokens.size()) - track.done;
    return Piece{&track, std::min(chunk, left), Piece::Want::kAll};
  };
  const auto unfinished = [](const Track& track) {
    return track.done < static_cast<int32_t>(track.tokens.size());
  };
  while (true) {
    std::vector<Piece> pieces;
    for (Track& track : tracks) {
      if (unfinished(track) && (together || pieces.empty())) pieces.push_back(next_piece(track));
    }
    if (pieces.empty()) break;
    run_step(model, kv, pieces);
  }
  std::vector<std::vector<float>> all;
  for (const Track& track : tracks) {
    std::vector<float>& rows = all.emplace_back();
    for (const auto& [position, logits] : track.logits) {
      rows.insert(rows.end(), logits.begin(), logits.end());
    }
  }
  return all;
}

std::vector<float> row_errors(Model& model, const Golden& golden, KvType type) {
  std::vector<std::vector<TokenId>> input;
  for (const Sequence& sequence : golden.sequences) input.push_back(sequence.tokens);
  const auto logits = run_all(model, input, type, 16, 1 << 20, true);
  const auto vocab = static_cast<size_t>(golden.spec.vocab_size);
  std::vector<float> errors;
  for (size_t i = 0; i < logits.size(); ++i) {
    const std::vector<float>& expected = golden.sequences[i].logits;
    ESP_CHECK(logits[i].size() == expected.size());
    for (size_t j = 0; j < expected.size(); ++j) {
      if (j % vocab == 0) errors.push_back(0);
      const float error = std::abs(logits[i][j] - expected[j]) / golden.spread;
      if (!(error <= errors.back())) errors.back() = error;
    }
  }
  return errors;
}

float max_error(Model& model, const Golden& golden, KvType type) {
  float worst = 0;
  for (const float error : row_errors(model, golden, type)) {
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

bool may_jump(DType type, const Golden& golden) {
  const auto has_experts = [](const LayerSpec& layer) { return layer.experts.has_value(); };
  return type != DType::kFloat32 && std::ranges::any_of(golden.spec.layers, has_experts);
}

float largest_error(std::vector<float> errors, bool may_jump) {
  for (const float error : errors) {
    if (std::isnan(error)) return error;
  }
  std::ranges::sort(errors);
  const auto count = static_cast<double>(errors.size());
  return errors[may_jump ? static_cast<size_t>(kRowsThatAgree * count) : errors.size() - 1];
}

}  // namespace espalier::golden
