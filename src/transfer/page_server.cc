#include "transfer/page_server.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thread.h"

namespace espalier::transfer {
namespace {

constexpr Duration kAcceptInterval = std::chrono::seconds(1);  // rooms are looked at so often

// In frames that a receiver takes: alternatives of a token may be many.
Status send_logprobs(FrameStream& frames, const InputLogprobs& all) {
  size_t bytes = 0;
  InputLogprobs part{.first = all.first};
  for (size_t i = 0; i < all.logprobs.size(); ++i) {
    const TokenLogprobs& one = all.logprobs[i];
    part.logprobs.push_back(one);
    bytes += 16 + 8 * (one.top.size() + one.wanted.size());
    if (bytes < kPagesFrameBytes && i + 1 < all.logprobs.size()) continue;
    ESP_RETURN_IF_ERROR(frames.send(FrameType::kLogprobs, encode(part)));
    part = {.first = all.first + static_cast<uint32_t>(i) + 1};
    bytes = 0;
  }
  return {};
}

Status receive_reads(FrameStream& frames, int& num_unread, int num_unread_max) {
  for (; num_unread > num_unread_max; --num_unread) {
    ESP_ASSIGN_OR_RETURN(const FrameStream::Frame frame, frames.receive(kControlBytesMax));
    if (frame.type != FrameType::kRead)
      return error(StatusCode::kDataLoss, "the decode server did not confirm staged pages");
  }
  return {};
}

// The parts without so many leading pages.
std::vector<StagedPart> without(std::span<const StagedPart> parts, uint32_t num_skipped) {
  std::vector<StagedPart> left;
  auto skip = static_cast<int32_t>(num_skipped);
  for (StagedPart part : parts) {
    const int32_t skipped = std::min(skip, part.num_pages);
    skip -= skipped;
    part.first += skipped;
    part.num_pages -= skipped;
    if (part.num_pages > 0) left.push_back(part);
  }
  return left;
}

// The reader copies planes of all pages as soon as they are there. It may be one frame behind.
Status send_staged(FrameStream& frames, const Room::Staged& item) {
  constexpr int kUnreadMax = 1;
  StagedPages& pages = *item.pages;
  StagedView staged{.first = item.first + item.num_skipped,
                    .parts = without(pages.parts(), item.num_skipped)};
  int num_unread = 0;
  for (int32_t range = 0; range < pages.num_ranges(); ++range) {
    const auto planes = pages.wait(range);
    if (!planes) {
      // What the reader sent is read first: closing with it unread would discard the reason.
      ESP_RETURN_IF_ERROR(receive_reads(frames, num_unread, 0));
      return planes.error();
    }
    staged.planes = *planes;
    staged.completes = range + 1 == pages.num_ranges();
    ESP_RETURN_IF_ERROR(receive_reads(frames, num_unread, kUnreadMax));
    ESP_RETURN_IF_ERROR(frames.send(FrameType::kStaged, encode(staged)));
    ++num_unread;
  }
  return receive_reads(frames, num_unread, 0);  // then the blocks may be used again
}

// For a reader that cannot map the memory: the same as bytes.
Status send_as_bytes(FrameStream& frames, const Room::Staged& item, uint64_t page_bytes) {
  StagedPages& pages = *item.pages;
  for (int32_t range = 0; range < pages.num_ranges(); ++range)
    if (const auto planes = pages.wait(range); !planes) return planes.error();
  const size_t most = std::max<size_t>(1, kPagesFrameBytes / page_bytes);
  std::vector<std::byte> bytes;
  uint32_t first = item.first + item.num_skipped;
  for (const StagedPart& part : without(pages.parts(), item.num_skipped))
    for (int32_t at = 0; at < part.num_pages;) {
      const auto count = std::min<size_t>(most, static_cast<size_t>(part.num_pages - at));
      bytes.resize(count * page_bytes);
      for (size_t i = 0; i < count; ++i)
        ESP_RETURN_IF_ERROR(pages.read(part, part.first + at++,
                                       std::span(bytes).subspan(i * page_bytes, page_bytes)));
      ESP_RETURN_IF_ERROR(frames.send(FrameType::kPages, encode_pages_header(first, bytes), bytes));
      first += static_cast<uint32_t>(count);
    }
  return {};
}

void report(FrameStream& frames, const Status& status) noexcept {
  try {
    (void)frames.send(FrameType::kFailed, encode(Failure{status.code(), status.message()}));
  } catch (const std::bad_alloc&) {  // the peer finds the connection closed
  }
}

}  // namespace

Result<std::unique_ptr<PageServer>> PageServer::start(const PageServerConfig& config,
                                                      RoomTable& rooms) {
  auto listener = net::TcpListener::listen(config.host, config.port);
  if (!listener)
    return fail(listener.error().with_context(
        "the bootstrap port (--disaggregation-bootstrap-port) cannot be opened"));
  return std::unique_ptr<PageServer>(new PageServer(config, rooms, *std::move(listener)));
}

PageServer::PageServer(const PageServerConfig& config, RoomTable& rooms,
                       std::unique_ptr<net::TcpListener> listener)
    : config_(config), rooms_(rooms), listener_(std::move(listener)), thread_([this] { run(); }) {}

PageServer::~PageServer() {
  is_stopped_ = true;
  listener_->shutdown();
  rooms_.close_all();
  thread_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const Connection& connection : connections_) connection.stream->interrupt();
  }
  reap(/*all=*/true);
}

TransferStats PageServer::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

size_t PageServer::num_connections() const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const Connection& connection : connections_) count += connection.is_done ? 0 : 1;
  return count;
}

void PageServer::run() {
  set_thread_name("bootstrap");
  while (!is_stopped_) {
    if (auto stream = listener_->accept(kAcceptInterval)) add(std::move(stream));
    reap(/*all=*/false);
    if (const int num_late = rooms_.close_late(); num_late > 0) {
      log_warning("no decode server has fetched prompts rooms={} timeout_s={:.0f}", num_late,
                  to_seconds(config_.room_timeout));
      const std::lock_guard lock(mutex_);
      stats_.num_failed += num_late;
    }
  }
}

// Beyond the bound, and where the system has no memory or thread, the connection is closed at once.
void PageServer::add(std::unique_ptr<net::ByteStream> stream) {
  const std::lock_guard lock(mutex_);
  if (connections_.size() >= config_.num_connections_max) return;
  const size_t num_before = connections_.size();
  try {
    Connection& connection = connections_.emplace_back(std::move(stream));
    connection.thread = std::thread([this, &connection] { serve(connection); });
  } catch (const std::exception&) {
    if (connections_.size() > num_before) connections_.pop_back();
  }
}

void PageServer::reap(bool all) {
  std::list<Connection> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto at = it++;
      // A caller that sends its greeting byte by byte would hold a thread without end.
      if (!at->is_greeted && SteadyClock().now() - at->begun > config_.silence_max)
        at->stream->interrupt();
      if (all || at->is_done) gone.splice(gone.end(), connections_, at);
    }
  }
  for (Connection& connection : gone) connection.thread.join();
}

void PageServer::serve(Connection& connection) {
  set_thread_name("send-pages");
  const SteadyClock clock;
  const TimePoint start = clock.now();
  FrameStream frames(*connection.stream, config_.silence_max);
  TransferStats sent;
  Status status;
  try {
    status = transfer(frames, connection.is_greeted, sent);
  } catch (const std::exception&) {
    status = {StatusCode::kResourceExhausted,
              "the prefill server has no memory for the transfer: try again later"};
  }
  if (!status.ok()) {
    log_warning("a prompt was not transferred: {}", status.to_string());
    report(frames, status);
  }
  {
    const std::lock_guard lock(mutex_);
    ++(status.ok() ? stats_.num_transfers : stats_.num_failed);
    stats_.num_bytes += sent.num_bytes;
    stats_.num_staged_bytes += sent.num_staged_bytes;
    stats_.exposed_seconds += sent.exposed_seconds;
    if (status.ok()) stats_.seconds += to_seconds(clock.now() - start);
  }
  connection.stream->interrupt();
  connection.is_done = true;
}

Status PageServer::transfer(FrameStream& frames, std::atomic<bool>& is_greeted,
                            TransferStats& sent) {
  ESP_ASSIGN_OR_RETURN(const Hello hello, greet(frames));
  is_greeted = true;
  ESP_ASSIGN_OR_RETURN(const bool maps, offer_staging(frames, hello));
  ESP_ASSIGN_OR_RETURN(const auto room, await_room(frames, hello));
  const struct Removal {  // whatever ends the transfer
    ~Removal() { rooms.remove(key, room); }
    RoomTable& rooms;
    const RoomKey& key;
    const std::shared_ptr<Room>& room;
  } removal{rooms_, hello.key, room};
  return send_room(frames, *room, maps, sent);
}

// Nothing of the greeting is interpreted before its proof has been checked.
Result<Hello> PageServer::greet(FrameStream& frames) const {
  const Challenge challenge{.nonce = draw_nonce()};
  ESP_RETURN_IF_ERROR(frames.send(FrameType::kChallenge, encode(challenge)));
  ESP_ASSIGN_OR_RETURN(const FrameStream::Frame frame, frames.receive(kControlBytesMax));
  const size_t proof_bytes = Proof().size();
  if (frame.type != FrameType::kHello || frame.payload.size() < proof_bytes)
    return fail(error(StatusCode::kDataLoss,
                      "no greeting was received: is the caller an Espalier decode server?"));
  const std::string_view body = frame.payload.substr(0, frame.payload.size() - proof_bytes);
  if (!equal(prove(config_.token, {"decode", text_of(challenge.nonce), body}),
             frame.payload.substr(body.size())))
    return fail(error(StatusCode::kUnauthenticated,
                      "the decode server's token is another one: start both servers with the same "
                      "--disaggregation-token"));
  ESP_ASSIGN_OR_RETURN(const Hello hello, decode_hello(body));
  if (hello.version != kProtocolVersion)
    return fail(error(StatusCode::kFailedPrecondition,
                      "the decode server speaks version {} of the transfer's protocol, the prefill "
                      "server version {}: run the same release on both",
                      hello.version, kProtocolVersion));
  ESP_RETURN_IF_ERROR(check_shapes(config_.shape, hello.shape));
  const Proof proof =
      prove(config_.token, {"prefill", text_of(hello.nonce), text_of(challenge.nonce)});
  ESP_RETURN_IF_ERROR(frames.send(FrameType::kAccept, text_of(proof)));
  return hello;
}

// Whether the reader has mapped the staging memory.
Result<bool> PageServer::offer_staging(FrameStream& frames, const Hello& hello) const {
  if (config_.staging.kind.empty() || hello.maps != config_.staging.kind) return false;
  ESP_RETURN_IF_ERROR(frames.send(FrameType::kStaging, encode(config_.staging)));
  ESP_ASSIGN_OR_RETURN(const FrameStream::Frame frame, frames.receive(kControlBytesMax));
  if (frame.type != FrameType::kMapped || frame.payload.size() != 1)
    return fail(error(StatusCode::kDataLoss,
                      "the decode server did not answer whether it maps staging memory"));
  return frame.payload[0] != 0;
}

Result<std::shared_ptr<Room>> PageServer::await_room(FrameStream& frames, const Hello& hello) {
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + config_.room_timeout;
  std::shared_ptr<Room> room;  // filled by the scheduler
  while ((room = rooms_.join(hello.key, std::min(config_.wait_interval, config_.room_timeout))) ==
         nullptr) {
    if (is_stopped_) return fail(error(StatusCode::kUnavailable, "the prefill server is stopping"));
    if (clock.now() >= deadline)
      return fail(error(StatusCode::kDeadlineExceeded,
                        "no request with bootstrap_room {} came to the prefill server within "
                        "{:.0f} s: send the same request to both servers",
                        hello.key.room, to_seconds(config_.room_timeout)));
    ESP_RETURN_IF_ERROR(frames.send(FrameType::kWait, {}));
  }
  if (room->prompt().name == hello.prompt && room->prompt().num_tokens == hello.num_tokens) {
    room->skip_pages(hello.num_cached);
    return room;
  }
  rooms_.remove(hello.key, room);
  return fail(error(StatusCode::kInvalidArgument,
                    "the request with bootstrap_room {} has another prompt at the prefill server "
                    "({} tokens) than at the decode server ({}): send the same request to both",
                    hello.key.room, room->prompt().num_tokens, hello.num_tokens));
}

Status PageServer::send_item(FrameStream& frames, const Room::Item& item, bool maps,
                             TransferStats& sent) const {
  if (const auto* const pages = std::get_if<Room::Pages>(&item)) {
    ESP_RETURN_IF_ERROR(frames.send(
        FrameType::kPages, encode_pages_header(pages->first, pages->bytes), pages->bytes));
    sent.num_bytes += std::ssize(pages->bytes);
    return {};
  }
  if (const auto* const staged = std::get_if<Room::Staged>(&item)) {
    const int64_t bytes = (staged->pages->num_pages() - int64_t{staged->num_skipped}) *
                          static_cast<int64_t>(config_.shape.page_bytes);
    ESP_RETURN_IF_ERROR(maps ? send_staged(frames, *staged)
                             : send_as_bytes(frames, *staged, config_.shape.page_bytes));
    sent.num_bytes += bytes;
    sent.num_staged_bytes += maps ? bytes : 0;
    return {};
  }
  if (const auto* const logprobs = std::get_if<InputLogprobs>(&item))
    return send_logprobs(frames, *logprobs);
  if (const auto* const first = std::get_if<FirstToken>(&item))
    return frames.send(FrameType::kFirst, encode(*first));
  const auto& failure = std::get<Failure>(item);
  return {failure.code, failure.message};
}

Status PageServer::send_room(FrameStream& frames, Room& room, bool maps, TransferStats& sent) {
  while (true) {
    const std::optional<Room::Item> item = room.next(config_.wait_interval);
    if (!item) {
      ESP_RETURN_IF_ERROR(frames.send(FrameType::kWait, {}));
      continue;
    }
    ESP_RETURN_IF_ERROR(send_item(frames, *item, maps, sent));
    if (std::holds_alternative<FirstToken>(*item)) break;
  }
  ESP_ASSIGN_OR_RETURN(const FrameStream::Frame frame, frames.receive(kControlBytesMax));
  if (frame.type != FrameType::kTaken)
    return error(StatusCode::kDataLoss, "the decode server confirmed nothing");
  sent.exposed_seconds = to_seconds(SteadyClock().now() - room.ended_at());
  return {};
}

}  // namespace espalier::transfer
