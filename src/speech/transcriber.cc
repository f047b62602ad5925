#include "speech/transcriber.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/rng.h"
#include "base/thread.h"
#include "media/mel.h"
#include "speech/languages.h"
#include "speech/track.h"
#include "speech/whisper_model.h"

namespace espalier {
namespace speech {
namespace {

Status cancelled() { return Status(StatusCode::kAborted, "the request was aborted"); }

// A window is encoded between two steps, of the slots in turn, so that no request waits for more
// windows of another than there are slots; the tokens of all go in one step.
class WhisperTranscriber final : public Transcriber {
 public:
  WhisperTranscriber(std::unique_ptr<WhisperModel> model, uint64_t seed)
      : model_(std::move(model)),
        seed_(seed),
        running_(static_cast<size_t>(model_->info().running_max)),
        thread_([this] { run(); }) {}
  ~WhisperTranscriber() override;

  Result<uint64_t> submit(TranscriptionRequest request, TranscriptSink sink) override;
  void cancel(uint64_t id) override;
  void cancel_all() override;
  void close() override;
  TranscriberStats stats() const override;
  const TranscriberInfo& info() const override { return model_->info(); }
  const Tokenizer& tokenizer() const override { return model_->tokenizer(); }

 private:
  struct Job {
    uint64_t id = 0;
    std::unique_ptr<Track> track;
  };

  Status check(const TranscriptionRequest& request) const;
  TrackInput make_input(TranscriptionRequest request) const;

  void run();
  bool admit();  // false where the thread ends
  void end_cancelled();
  void encode_one();
  void step();
  void choose(std::span<const DecoderEntry> entries, std::span<const float> logits);
  void count_end(const Job& job);

  const std::unique_ptr<WhisperModel> model_;
  const uint64_t seed_;
  const SteadyClock clock_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_;
  std::vector<uint64_t> cancelled_;
  bool cancel_all_ = false, closed_ = false, stopping_ = false;
  uint64_t last_id_ = 0;
  TranscriberStats stats_;

  // Of the thread.
  std::vector<Job> running_;  // a job without a track is a free slot
  size_t last_encoded_ = 0;   // the slot

  std::jthread thread_;  // last: it begins when all else is there
};

WhisperTranscriber::~WhisperTranscriber() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (Job& job : running_) {
    if (job.track != nullptr) job.track->abort(cancelled());
  }
  for (Job& job : waiting_) job.track->abort(cancelled());
}

Status WhisperTranscriber::check(const TranscriptionRequest& request) const {
  const WhisperConfig& config = model_->config();
  if (request.samples.empty()) return invalid_argument("the audio has no samples");
  if (!(request.temperature >= 0 && request.temperature <= 1)) {
    return invalid_argument("temperature is {}, but must be between 0 and 1", request.temperature);
  }
  if (std::ssize(request.prompt) > TranscriberInfo::kPromptBytesMax) {
    return invalid_argument("prompt has {} bytes, but may have {}: send its last sentences",
                            request.prompt.size(), TranscriberInfo::kPromptBytesMax);
  }
  if (request.translate && config.tokens.translate < 0) {
    return invalid_argument(
        "this model does not translate: take a multilingual one (openai/whisper-small, not "
        "whisper-small.en)");
  }
  if (request.language.empty()) return Status();
  const std::string_view code = language_code(request.language);
  if (code.empty()) {
    return invalid_argument(
        "language '{}' is not known: send a code of ISO 639-1 (\"en\") or leave it out",
        request.language);
  }
  const bool knows =
      config.tokens.multilingual() ? config.tokens.language(code) >= 0 : code == "en";
  if (!knows) {
    return invalid_argument(
        "this model does not know the language '{}': leave it out, or take {}", request.language,
        config.tokens.multilingual() ? "one that it was trained for" : "a multilingual model");
  }
  return Status();
}

TrackInput WhisperTranscriber::make_input(TranscriptionRequest request) const {
  const WhisperConfig& config = model_->config();
  const MelSpec spec{.num_mels = config.sizes.num_mels};
  TrackInput input;
  const int64_t count = std::ssize(request.samples);
  input.duration = static_cast<double>(count) / TranscriberInfo::kSampleRate;
  input.num_frames = std::max<int64_t>(1, count / spec.hop);
  const int64_t window = int64_t{config.sizes.window_frames()} * spec.hop;
  input.timestamps = request.timestamps || count > window;
  if (count < window) request.samples.resize(static_cast<size_t>(window));
  input.mel = log_mel(request.samples, spec);
  if (config.tokens.multilingual()) input.language = language_code(request.language);
  input.translate = request.translate;
  input.temperature = request.temperature;
  input.tokens_max = request.tokens_max;
  const size_t begin = request.prompt.find_first_not_of(" \t\r\n");
  if (begin != std::string::npos) {
    const size_t end = request.prompt.find_last_not_of(" \t\r\n");
    input.prompt =
        model_->tokenizer().encode(" " + request.prompt.substr(begin, end - begin + 1),
                                   {.add_special_tokens = false, .parse_special = false});
    // No window reads more of it.
    const int64_t room = std::max(0, config.sizes.max_target_positions / 2 - 1);
    const int64_t beyond = std::max<int64_t>(0, std::ssize(input.prompt) - room);
    input.prompt.erase(input.prompt.begin(), input.prompt.begin() + beyond);
  }
  return input;
}

Result<uint64_t> WhisperTranscriber::submit(TranscriptionRequest request, TranscriptSink sink) {
  ESP_RETURN_IF_ERROR(check(request));
  const auto refusal = [&]() -> Status {
    if (closed_) return Status(StatusCode::kUnavailable, "the server is stopping");
    if (std::ssize(waiting_) < model_->info().waiting_max) return Status();
    return error(StatusCode::kResourceExhausted,
                 "{} requests wait for transcription: try again later", waiting_.size());
  };
  {
    std::lock_guard lock(mutex_);
    ESP_RETURN_IF_ERROR(refusal());  // before the spectrogram, which takes its time
  }
  TrackInput input = make_input(std::move(request));
  {
    std::lock_guard lock(mutex_);
    ESP_RETURN_IF_ERROR(refusal());
    input.seed = mix64(seed_ + ++last_id_);
    waiting_.push_back({last_id_, std::make_unique<Track>(std::move(input), std::move(sink),
                                                          model_->config(), model_->tokenizer())});
    ++stats_.num_total;
    stats_.num_waiting = static_cast<int32_t>(waiting_.size());
    changed_.notify_all();
    return last_id_;
  }
}

void WhisperTranscriber::cancel(uint64_t id) {
  std::lock_guard lock(mutex_);
  cancelled_.push_back(id);
  changed_.notify_all();
}

void WhisperTranscriber::cancel_all() {
  std::lock_guard lock(mutex_);
  cancel_all_ = true;
  changed_.notify_all();
}

void WhisperTranscriber::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

TranscriberStats WhisperTranscriber::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void WhisperTranscriber::run() {
  set_thread_name("esp-speech");
  model_->pool().bind_caller();
  while (admit()) {
    end_cancelled();
    encode_one();
    step();
  }
}

bool WhisperTranscriber::admit() {
  const auto is_running = [](const Job& job) { return job.track != nullptr; };
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return stopping_ || cancel_all_ || !cancelled_.empty() || !waiting_.empty() ||
           std::ranges::any_of(running_, is_running);
  });
  if (stopping_) return false;
  for (Job& slot : running_) {
    if (slot.track != nullptr || waiting_.empty()) continue;
    slot = std::move(waiting_.front());
    waiting_.pop_front();
  }
  stats_.num_waiting = static_cast<int32_t>(waiting_.size());
  stats_.num_running = static_cast<int32_t>(std::ranges::count_if(running_, is_running));
  return true;
}

void WhisperTranscriber::end_cancelled() {
  std::vector<Job> ended;
  {
    std::lock_guard lock(mutex_);
    const auto is_cancelled = [&](const Job& job) {
      return job.track != nullptr &&
             (cancel_all_ || std::ranges::find(cancelled_, job.id) != cancelled_.end());
    };
    for (Job& job : running_) {
      if (is_cancelled(job)) ended.push_back(std::exchange(job, {}));
    }
    for (Job& job : waiting_) {
      if (is_cancelled(job)) ended.push_back(std::exchange(job, {}));
    }
    std::erase_if(waiting_, [](const Job& job) { return job.track == nullptr; });
    cancelled_.clear();
    cancel_all_ = false;
  }
  for (Job& job : ended) {
    job.track->abort(cancelled());
    count_end(job);
    std::lock_guard lock(mutex_);
    ++stats_.num_aborted;
  }
}

// One window between two steps, so that the others' tokens do not wait for all of them.
void WhisperTranscriber::encode_one() {
  for (size_t i = 1; i <= running_.size(); ++i) {
    const size_t slot = (last_encoded_ + i) % running_.size();
    Track* const track = running_[slot].track.get();
    if (track == nullptr || !track->needs_source()) continue;
    last_encoded_ = slot;
    const TimePoint begin = clock_.now();
    const Status encoded =
        model_->runner().set_source(static_cast<int32_t>(slot), track->mel(), track->first_frame());
    if (!encoded.ok()) {
      track->abort(encoded);
      count_end(std::exchange(running_[slot], {}));
      return;
    }
    track->source_is_set();
    std::lock_guard lock(mutex_);
    ++stats_.num_windows;
    stats_.encode_seconds += to_seconds(clock_.now() - begin);
    return;
  }
}

void WhisperTranscriber::step() {
  std::vector<DecoderEntry> entries;
  for (size_t slot = 0; slot < running_.size(); ++slot) {
    const Track* const track = running_[slot].track.get();
    if (track == nullptr || track->needs_source()) continue;
    entries.push_back({.slot = static_cast<int32_t>(slot),
                       .num_cached = track->num_cached(),
                       .tokens = track->pending(),
                       .logits_row = track->logits_row()});
  }
  if (entries.empty()) return;
  const TimePoint begin = clock_.now();
  const auto logits = model_->runner().step(entries);
  for (const DecoderEntry& entry : entries)
    if (!logits) running_[static_cast<size_t>(entry.slot)].track->abort(logits.error());
  if (logits) choose(entries, *logits);
  for (const DecoderEntry& entry : entries) {
    Job& job = running_[static_cast<size_t>(entry.slot)];
    if (job.track->finished()) count_end(std::exchange(job, {}));
  }
  std::lock_guard lock(mutex_);
  ++stats_.num_steps;
  stats_.decode_seconds += to_seconds(clock_.now() - begin);
}

// The rules and the choice among a large vocabulary take longer than a GPU's step, so the threads
// share the entries; what follows from them comes in their order.
void WhisperTranscriber::choose(std::span<const DecoderEntry> entries,
                                std::span<const float> logits) {
  const auto vocab = static_cast<size_t>(model_->config().sizes.vocab_size);
  std::vector<Track::Choice> choices(entries.size());
  std::vector<size_t> rows;  // of each entry's last token
  size_t row = 0;
  for (const DecoderEntry& entry : entries) {
    row += entry.logits_row >= 0 ? 1 : 0;
    rows.push_back(row++);
  }
  const auto choose_one = [&](size_t i) {
    const DecoderEntry& entry = entries[i];
    const auto own = logits.subspan(rows[i] * vocab, vocab);
    const auto start = entry.logits_row >= 0 ? logits.subspan((rows[i] - 1) * vocab, vocab)
                                             : std::span<const float>();
    choices[i] = running_[static_cast<size_t>(entry.slot)].track->choose(
        start, std::vector<float>(own.begin(), own.end()));
  };
  model_->pool().parallel_for(std::ssize(entries), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) choose_one(static_cast<size_t>(i));
  });
  for (size_t i = 0; i < entries.size(); ++i)
    running_[static_cast<size_t>(entries[i].slot)].track->accept(choices[i]);
}

void WhisperTranscriber::count_end(const Job& job) {
  const Transcription& result = job.track->result();
  std::lock_guard lock(mutex_);
  ++stats_.num_finished;
  stats_.num_running = static_cast<int32_t>(
      std::ranges::count_if(running_, [](const Job& each) { return each.track != nullptr; }));
  stats_.num_waiting = static_cast<int32_t>(waiting_.size());
  stats_.num_prompt_tokens += result.num_prompt_tokens;
  stats_.num_tokens += result.num_tokens;
  stats_.audio_seconds += result.duration;
}

}  // namespace
}  // namespace speech

Result<std::unique_ptr<Transcriber>> Transcriber::create(const TranscriberOptions& options) {
  ESP_ASSIGN_OR_RETURN(auto model, speech::WhisperModel::load(options));
  return std::make_unique<speech::WhisperTranscriber>(std::move(model), options.seed);
}

Result<Transcription> Transcriber::transcribe(TranscriptionRequest request) {
  // Shared: the thread may still be in the sink when the result has been taken.
  const auto ended = std::make_shared<std::promise<TranscriptEvent>>();
  std::future<TranscriptEvent> end = ended->get_future();
  ESP_ASSIGN_OR_RETURN([[maybe_unused]] const uint64_t id,
                       submit(std::move(request), [ended](TranscriptEvent&& event) {
                         if (event.finished) ended->set_value(std::move(event));
                       }));
  TranscriptEvent event = end.get();
  if (!event.status.ok()) return fail(std::move(event.status));
  return std::move(event.result);
}

}  // namespace espalier
