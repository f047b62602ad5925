// The decode server's side: fetches one prompt from a prefill server.
//
// run() blocks on a thread of the caller's; cancel() may come from any other, before or meanwhile.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "net/byte_stream.h"
#include "transfer/frame_stream.h"

namespace espalier::transfer {

struct PageFetchConfig {
  std::string host;
  int port = 0;
  std::string token;
  Duration connect_timeout = std::chrono::seconds(5);
  Duration silence_max = std::chrono::seconds(10);
  Duration wait_max = std::chrono::seconds(600);  // for the prompt, while the server says it waits
};

// All that came with the pages.
struct Fetched {
  FirstToken first;
  std::vector<InputLogprobs> logprobs;
  int64_t num_bytes = 0;         // of pages
  int64_t num_staged_bytes = 0;  // of these, from staging memory
};

class PageFetch {
 public:
  // Stores pages [first, first + bytes.size() / page_bytes); false: it cannot, or needs no more.
  using TakePages = std::function<bool(uint32_t first, std::span<const std::byte> bytes)>;

  // How pages are taken from staging memory, on the thread of run(); without `map` they come as
  // bytes. Both false: it cannot.
  struct Staging {
    std::string kind;  // that is mapped
    std::function<bool(const StagingHandle& handle)> map;
    std::function<bool(const StagedView& staged)> take;
  };

  // `hello` without its nonce and what it maps. Pages from hello.num_cached on are fetched.
  PageFetch(PageFetchConfig config, Hello hello)
      : config_(std::move(config)), hello_(std::move(hello)) {}

  // Ok where every page up to FirstToken::num_tokens has been taken. kUnavailable and
  // kDeadlineExceeded where the server does not answer, has ended or is silent; kDataLoss where it
  // violates the protocol; else what the server failed with.
  Result<Fetched> run(const TakePages& take, const Staging& staging = {});
  void cancel() { stream_.interrupt(); }

 private:
  Result<Fetched> fetch(const TakePages& take, const Staging& staging);
  Status greet(FrameStream& frames);
  Result<Fetched> receive(FrameStream& frames, const TakePages& take, const Staging& staging) const;
  Status take_pages(std::string_view payload, const TakePages& take, uint32_t& next_page,
                    Fetched& fetched) const;
  Status take_staged(std::string_view payload, const Staging& staging, uint32_t& next_page,
                     Fetched& fetched) const;
  static Status map(FrameStream& frames, std::string_view payload, const Staging& staging);
  Status check_first(const FirstToken& first, uint32_t next_page) const;

  const PageFetchConfig config_;
  Hello hello_;
  net::ByteStream stream_;
};

}  // namespace espalier::transfer
