#include "engine/text_io/tokenizer_pool.h"

#include <algorithm>
#include <exception>

#include "base/memory_reserve.h"
#include "base/thread.h"

namespace espalier {

TokenizerPool::TokenizerPool(const Tokenizer& tokenizer, int num_threads, size_t capacity)
    : tokenizer_(tokenizer), jobs_(capacity) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

TokenizerPool::~TokenizerPool() {
  jobs_.close();
  std::vector<Job> dropped;
  jobs_.drain(dropped);
  for (std::thread& thread : threads_) thread.join();
}

bool TokenizerPool::submit(std::string text, const EncodeOptions& options, Done done) {
  return jobs_.try_push({.text = std::move(text), .options = options, .done = std::move(done)});
}

void TokenizerPool::work() {
  set_thread_name("tokenizer");
  // A long prompt is split and encoded in parallel, by at most as many threads as there are
  // processors.
  const int num_threads = static_cast<int>(usable_cpus().size());
  while (auto job = jobs_.pop()) {
    job->options.num_threads = std::max(job->options.num_threads, num_threads);
    auto ids = encode(*job);
    const MemoryReserveScope reserve;  // the answer is passed on even when memory is short
    job->done(std::move(ids));
  }
}

Result<std::vector<TokenId>> TokenizerPool::encode(const Job& job) const {
  try {
    return tokenizer_.encode(job.text, job.options);
  } catch (const std::exception&) {  // the standard library's: no memory, or no thread
    return fail(error(StatusCode::kResourceExhausted,
                      "there is no memory to tokenise a prompt of {} bytes: try again later",
                      job.text.size()));
  }
}

}  // namespace espalier
