#include "transfer/page_fetch.h"

#include <algorithm>
#include <utility>

namespace espalier::transfer {
namespace {

Status cancelled() { return error(StatusCode::kAborted, "the transfer was cancelled"); }

Status violation(std::string_view what) {
  return error(StatusCode::kDataLoss,
               "the prefill server sent {}: is it an Espalier server of this version?", what);
}

// What the server reports as its failure, or what is wrong with the frame.
Status unexpected(const FrameStream::Frame& frame) {
  if (frame.type != FrameType::kFailed) return violation("a frame that does not belong here");
  ESP_ASSIGN_OR_RETURN(const Failure failure, decode_failure(frame.payload));
  return {failure.code, failure.message};
}

}  // namespace

Result<Fetched> PageFetch::run(const TakePages& take, const Staging& staging) {
  hello_.maps = staging.kind;
  Result<Fetched> fetched = fetch(take, staging);
  if (stream_.interrupted()) return fail(cancelled());
  return fetched;
}

Result<Fetched> PageFetch::fetch(const TakePages& take, const Staging& staging) {
  const Status connected = stream_.connect(
      {.host = config_.host, .port = config_.port, .connect_timeout = config_.connect_timeout});
  if (!connected.ok())
    return fail(connected.with_context(
        "the prefill server's bootstrap port does not answer (bootstrap_host and bootstrap_port "
        "of the request)"));
  FrameStream frames(stream_, config_.silence_max);
  ESP_RETURN_IF_ERROR(greet(frames).with_context("the prompt's transfer failed"));
  auto fetched = receive(frames, take, staging);
  if (!fetched) return fail(fetched.error().with_context("the prompt's transfer failed"));
  return fetched;
}

Status PageFetch::greet(FrameStream& frames) {
  ESP_ASSIGN_OR_RETURN(FrameStream::Frame frame, frames.receive(kControlBytesMax));
  if (frame.type != FrameType::kChallenge) return unexpected(frame);
  ESP_ASSIGN_OR_RETURN(const Challenge challenge, decode_challenge(frame.payload));
  if (challenge.version != kProtocolVersion)
    return error(StatusCode::kFailedPrecondition,
                 "the prefill server speaks version {} of the transfer's protocol, the decode "
                 "server version {}: run the same release on both",
                 challenge.version, kProtocolVersion);
  hello_.nonce = draw_nonce();
  std::string payload = encode(hello_);
  const Proof proof = prove(config_.token, {"decode", text_of(challenge.nonce), payload});
  payload.append(proof.begin(), proof.end());
  ESP_RETURN_IF_ERROR(frames.send(FrameType::kHello, payload));
  ESP_ASSIGN_OR_RETURN(frame, frames.receive(kControlBytesMax));
  if (frame.type != FrameType::kAccept) return unexpected(frame);
  if (!equal(prove(config_.token, {"prefill", text_of(hello_.nonce), text_of(challenge.nonce)}),
             frame.payload))
    return error(StatusCode::kUnauthenticated,
                 "the prefill server's token is another one: start both servers with the same "
                 "--disaggregation-token");
  return {};
}

Result<Fetched> PageFetch::receive(FrameStream& frames, const TakePages& take,
                                   const Staging& staging) const {
  const size_t bytes_max =
      std::max<size_t>({kLogprobBytesMax, kPagesFrameBytes, hello_.shape.page_bytes}) + 64;
  Fetched fetched;
  uint32_t next_page = hello_.num_cached;
  const SteadyClock clock;
  TimePoint last = clock.now();  // anything but kWait came
  while (true) {
    ESP_ASSIGN_OR_RETURN(const FrameStream::Frame frame, frames.receive(bytes_max));
    if (frame.type != FrameType::kWait) last = clock.now();
    switch (frame.type) {
      case FrameType::kWait:
        if (clock.now() - last > config_.wait_max)
          return fail(error(StatusCode::kDeadlineExceeded,
                            "the prefill server has computed nothing of the prompt for {:.0f} s",
                            to_seconds(config_.wait_max)));
        break;
      case FrameType::kPages:
        ESP_RETURN_IF_ERROR(take_pages(frame.payload, take, next_page, fetched));
        break;
      case FrameType::kStaging:
        ESP_RETURN_IF_ERROR(map(frames, frame.payload, staging));
        break;
      case FrameType::kStaged:
        ESP_RETURN_IF_ERROR(take_staged(frame.payload, staging, next_page, fetched));
        ESP_RETURN_IF_ERROR(frames.send(FrameType::kRead, {}));
        break;
      case FrameType::kLogprobs: {
        ESP_ASSIGN_OR_RETURN(InputLogprobs logprobs, decode_logprobs(frame.payload));
        fetched.logprobs.push_back(std::move(logprobs));
        break;
      }
      case FrameType::kFirst: {
        ESP_ASSIGN_OR_RETURN(fetched.first, decode_first(frame.payload));
        ESP_RETURN_IF_ERROR(check_first(fetched.first, next_page));
        (void)frames.send(FrameType::kTaken, {});  // all is here, whether or not it arrives
        return fetched;
      }
      default:
        return fail(unexpected(frame));
    }
  }
}

// Pages come in order and without a gap.
Status PageFetch::take_pages(std::string_view payload, const TakePages& take, uint32_t& next_page,
                             Fetched& fetched) const {
  ESP_ASSIGN_OR_RETURN(const PagesView pages, decode_pages(payload));
  const uint64_t page_bytes = hello_.shape.page_bytes;
  if (pages.first != next_page || pages.bytes.empty() || pages.bytes.size() % page_bytes != 0)
    return violation("pages that do not follow those before");
  if (!take(pages.first, pages.bytes)) return violation("pages that the prompt does not have");
  next_page += static_cast<uint32_t>(pages.bytes.size() / page_bytes);
  fetched.num_bytes += std::ssize(pages.bytes);
  return {};
}

Status PageFetch::map(FrameStream& frames, std::string_view payload, const Staging& staging) {
  if (!staging.map) return violation("staging memory that was not requested");
  ESP_ASSIGN_OR_RETURN(const StagingHandle handle, decode_staging(payload));
  const char is_mapped = handle.kind == staging.kind && staging.map(handle) ? 1 : 0;
  return frames.send(FrameType::kMapped, {&is_mapped, 1});
}

// Planes of the next pages; these are there when the last planes have come.
Status PageFetch::take_staged(std::string_view payload, const Staging& staging, uint32_t& next_page,
                              Fetched& fetched) const {
  ESP_ASSIGN_OR_RETURN(const StagedView staged, decode_staged(payload));
  if (!staging.take || staged.first != next_page || staged.parts.empty())
    return violation("staged pages that do not follow those before");
  if (!staging.take(staged)) return violation("staged pages that cannot be copied");
  if (!staged.completes) return {};
  next_page += staged.num_pages();
  const auto bytes = static_cast<int64_t>(staged.num_pages() * hello_.shape.page_bytes);
  fetched.num_bytes += bytes;
  fetched.num_staged_bytes += bytes;
  return {};
}

Status PageFetch::check_first(const FirstToken& first, uint32_t next_page) const {
  const uint64_t page_size = hello_.shape.page_size;
  const uint64_t num_pages = (first.num_tokens + page_size - 1) / page_size;
  if (first.num_tokens < hello_.num_tokens || num_pages != next_page)
    return violation("the first token before all pages of the prompt");
  return {};
}

}  // namespace espalier::transfer
