#include "api/native_call.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <iterator>
#include <mutex>

#include "engine/images/place_images.h"
#include "lang/backends/engine_answer.h"
#include "lang/json_text.h"
#include "lang/waiting.h"
#include "server/images.h"
#include "server/native_request.h"

namespace espalier::api {

// The samples of one call, filled on the engine's thread.
class NativeCall::Answers {
 public:
  struct Sample {
    GenerateResult result;
    bool is_done = false;
  };
  struct Prompt {
    std::vector<TokenId> input_ids;  // whose log-probabilities are wanted
    int n = 1;
    size_t first_sample = 0;
  };

  Answers(std::shared_ptr<Engine> engine, server::NativeRequest request)
      : engine_(std::move(engine)),
        is_list_(request.is_list),
        with_text_(request.return_text_in_logprobs) {
    for (server::NativeItem& item : request.items) {
      GenerateRequest& r = item.request;
      Prompt& prompt = prompts_.emplace_back(
          Prompt{.n = std::max(1, r.sampling.n), .first_sample = samples_.size()});
      samples_.resize(samples_.size() + static_cast<size_t>(prompt.n));
      if (!r.return_logprob) continue;
      if (!item.has_logprob_start && r.sampling.max_new_tokens == 0) r.logprob_start_len = 0;
      if (r.logprob_start_len < 0) continue;
      const auto& images = engine_->model_info().images;
      if (r.input_ids.empty() && images && !r.images.empty())
        r.text = mark_pictures(r.text, *images, r.images.size()).value_or(r.text);
      if (r.input_ids.empty()) r.input_ids = engine_->tokenizer()->encode(r.text);
      if (images && !r.images.empty())
        r.input_ids =
            expand_placeholders(r.input_ids, *images, static_cast<int32_t>(r.images.size()))
                .value_or(r.input_ids);  // the engine refuses what does not fit
      const auto begin = std::min(r.input_ids.size(), static_cast<size_t>(r.logprob_start_len));
      prompt.input_ids.assign(r.input_ids.begin() + static_cast<std::ptrdiff_t>(begin),
                              r.input_ids.end());
    }
    num_open_ = samples_.size();
  }

  // `self` is kept by the sinks until the engine has ended the requests.
  static Status submit(const std::shared_ptr<Answers>& self, server::NativeRequest request) {
    for (size_t i = 0; i < request.items.size(); ++i) {
      auto rid =
          self->engine_->submit(std::move(request.items[i].request),
                                [self, i](TokenEvent&& event) { self->take(i, std::move(event)); });
      if (!rid) {
        self->abort();
        return rid.error();
      }
      self->rids_.push_back(std::move(*rid));
    }
    return {};
  }

  bool is_list() const { return is_list_; }
  void abort() {
    for (const std::string& rid : rids_) engine_->abort(rid, Engine::AbortScope::kExact);
  }
  // Waits. The samples as JSON, in order.
  Result<std::vector<std::string>> all() {
    std::unique_lock lock(mutex_);
    ESP_RETURN_IF_ERROR(wait(lock, [&] { return num_open_ == 0; }));
    std::vector<std::string> out;
    for (size_t i = 0; i < samples_.size(); ++i) out.push_back(json_of(i, false));
    return out;
  }
  // Waits for a sample that has grown; "" at the end.
  Result<std::string> next() {
    std::unique_lock lock(mutex_);
    ESP_RETURN_IF_ERROR(wait(lock, [&] { return !grown_.empty() || num_open_ == 0; }));
    if (grown_.empty()) return std::string();
    const size_t index = grown_.front();
    grown_.pop_front();
    return json_of(index, is_list_);
  }

 private:
  Status wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_so) {
    if (lang::wait_until(lock, changed_, [&] { return is_so() || !failed_.ok(); })) return failed_;
    lock.unlock();
    abort();
    lock.lock();
    return lang::interrupted();
  }
  void take(size_t prompt, TokenEvent&& event) {
    std::lock_guard lock(mutex_);
    const size_t index = prompts_[prompt].first_sample + static_cast<size_t>(event.index);
    GenerateResult& r = samples_[index].result;
    r.text += event.text;
    r.output_ids.insert(r.output_ids.end(), event.ids.begin(), event.ids.end());
    std::move(event.logprobs.begin(), event.logprobs.end(), std::back_inserter(r.output_logprobs));
    if (event.next_logprobs) r.next_logprobs = std::move(event.next_logprobs);
    std::move(event.input_logprobs.begin(), event.input_logprobs.end(),
              std::back_inserter(r.input_logprobs));
    r.stats = event.stats;
    if (event.beam) r.beam = event.beam;
    if (event.finish) {
      r.finish = std::move(*event.finish);
      samples_[index].is_done = true;
      --num_open_;
      // An aborted sample is an answer, too: its finish_reason states it.
      if (failed_.ok() && r.finish.status.code() != StatusCode::kAborted) failed_ = r.finish.status;
    }
    if (std::find(grown_.begin(), grown_.end(), index) == grown_.end()) grown_.push_back(index);
    changed_.notify_all();
  }
  std::string json_of(size_t index, bool with_index) {
    size_t prompt = prompts_.size();
    while (prompts_[--prompt].first_sample > index) {
    }
    GenerateResult& r = samples_[index].result;
    r.rid = rids_[prompt];
    if (prompts_[prompt].n > 1) r.rid += fmt::format("/{}", index - prompts_[prompt].first_sample);
    const lang::MetaInfo meta =
        lang::meta_of(r, prompts_[prompt].input_ids, with_text_ ? engine_->tokenizer() : nullptr);
    std::string ids;
    for (const TokenId id : r.output_ids) ids += fmt::format("{}{}", ids.empty() ? "" : ",", id);
    return fmt::format(R"({{"text":{},"output_ids":[{}],"meta_info":{}{}}})",
                       lang::json_quoted(r.text), ids,
                       samples_[index].is_done ? meta.json : without_finish(meta.json),
                       with_index ? fmt::format(R"(,"index":{})", index) : "");
  }
  // Of a sample that goes on: finish_reason is null.
  static std::string without_finish(const std::string& meta) {
    static constexpr std::string_view kKey = R"("finish_reason":)";
    const size_t begin = meta.find(kKey) + kKey.size();
    const size_t end = meta.find('}', begin) + 1;
    return meta.substr(0, begin) + "null" + meta.substr(end);
  }

  const std::shared_ptr<Engine> engine_;  // shared with the back end
  const bool is_list_, with_text_;
  std::vector<Prompt> prompts_;
  std::vector<std::string> rids_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::vector<Sample> samples_;
  std::deque<size_t> grown_;
  size_t num_open_ = 0;
  Status failed_;
};

NativeCall::NativeCall(std::shared_ptr<Answers> answers) : answers_(std::move(answers)) {}
NativeCall::~NativeCall() { abort(); }

Result<std::unique_ptr<NativeCall>> NativeCall::submit(std::shared_ptr<Engine> engine,
                                                       std::string_view body) {
  bool malformed = false;
  ESP_ASSIGN_OR_RETURN(auto request, server::parse_native(body, malformed));
  // The caller is a program of this process, which reads the same files anyway.
  const auto access = std::make_shared<const server::MediaAccess>(server::MediaAccess{
      .limits = {.bytes_max = engine->config().images.max_image_bytes, .local_folder = "/"},
      .domains = {}});
  for (server::NativeItem& item : request.items)
    item.request.images = server::image_inputs(access, std::move(item.pictures));
  auto answers = std::make_shared<Answers>(std::move(engine), request);
  std::unique_ptr<NativeCall> call(new NativeCall(answers));
  ESP_RETURN_IF_ERROR(Answers::submit(answers, std::move(request)));
  return call;
}

bool NativeCall::is_list() const { return answers_->is_list(); }
Result<std::vector<std::string>> NativeCall::all() { return answers_->all(); }
Result<std::string> NativeCall::next() { return answers_->next(); }
void NativeCall::abort() { answers_->abort(); }

std::string NativeCall::body_schema() { return server::native_schema(); }
std::string NativeCall::sampling_schema() { return server::native_sampling_schema(); }

}  // namespace espalier::api
