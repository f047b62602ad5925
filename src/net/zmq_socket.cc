#include "net/zmq_socket.h"

#include <dlfcn.h>
#include <zmq.h>

#include <array>
#include <utility>

namespace espalier::net {

namespace {

// The functions that are called. Immutable; thread-safe.
struct ZmqLibrary {
  decltype(&::zmq_ctx_new) ctx_new;
  decltype(&::zmq_ctx_term) ctx_term;
  decltype(&::zmq_socket) socket;
  decltype(&::zmq_close) close;
  decltype(&::zmq_setsockopt) set_option;
  decltype(&::zmq_getsockopt) get_option;
  decltype(&::zmq_bind) bind;
  decltype(&::zmq_connect) connect;
  decltype(&::zmq_send) send;
  decltype(&::zmq_msg_init) msg_init;
  decltype(&::zmq_msg_recv) msg_recv;
  decltype(&::zmq_msg_data) msg_data;
  decltype(&::zmq_msg_size) msg_size;
  decltype(&::zmq_msg_more) msg_more;
  decltype(&::zmq_msg_close) msg_close;
  decltype(&::zmq_poll) poll;
  decltype(&::zmq_errno) last_errno;
  decltype(&::zmq_strerror) text_of;

  // Loads it with the first call.
  static Result<const ZmqLibrary*> load();
};

template <typename Function>
bool find_function(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  return out != nullptr;
}

Result<ZmqLibrary> open_library() {
  void* const library = dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
  ZmqLibrary zmq{};
  if (library == nullptr || !find_function(library, "zmq_ctx_new", zmq.ctx_new) ||
      !find_function(library, "zmq_ctx_term", zmq.ctx_term) ||
      !find_function(library, "zmq_socket", zmq.socket) ||
      !find_function(library, "zmq_close", zmq.close) ||
      !find_function(library, "zmq_setsockopt", zmq.set_option) ||
      !find_function(library, "zmq_getsockopt", zmq.get_option) ||
      !find_function(library, "zmq_bind", zmq.bind) ||
      !find_function(library, "zmq_connect", zmq.connect) ||
      !find_function(library, "zmq_send", zmq.send) ||
      !find_function(library, "zmq_msg_init", zmq.msg_init) ||
      !find_function(library, "zmq_msg_recv", zmq.msg_recv) ||
      !find_function(library, "zmq_msg_data", zmq.msg_data) ||
      !find_function(library, "zmq_msg_size", zmq.msg_size) ||
      !find_function(library, "zmq_msg_more", zmq.msg_more) ||
      !find_function(library, "zmq_msg_close", zmq.msg_close) ||
      !find_function(library, "zmq_poll", zmq.poll) ||
      !find_function(library, "zmq_errno", zmq.last_errno) ||
      !find_function(library, "zmq_strerror", zmq.text_of))
    return fail(error(StatusCode::kUnavailable,
                      "events of caches are sent and read with libzmq, which is not installed: "
                      "install it (Debian: apt-get install libzmq5)"));
  return zmq;
}

Result<const ZmqLibrary*> ZmqLibrary::load() {
  static const Result<ZmqLibrary> loaded = open_library();
  if (!loaded) return fail(loaded.error());
  return &*loaded;
}

int type_of(ZmqKind kind) {
  switch (kind) {
    case ZmqKind::kPublish:
      return ZMQ_PUB;
    case ZmqKind::kSubscribe:
      return ZMQ_SUB;
    case ZmqKind::kRouter:
      return ZMQ_ROUTER;
    case ZmqKind::kAsk:
      return ZMQ_DEALER;
  }
  return ZMQ_DEALER;
}

}  // namespace

struct ZmqSocket::Impl {
  explicit Impl(const ZmqLibrary& library) : zmq(library) {}
  ~Impl() {
    if (socket != nullptr) zmq.close(socket);
    if (context != nullptr) zmq.ctx_term(context);
  }

  template <typename Value>
  bool set(int option, const Value& value) {
    return zmq.set_option(socket, option, &value, sizeof value) == 0;
  }
  Status failure(std::string_view what, const std::string& endpoint) const {
    const int number = zmq.last_errno();
    const bool wrong = number == EINVAL || number == EPROTONOSUPPORT || number == ENODEV;
    return error(wrong ? StatusCode::kInvalidArgument : StatusCode::kFailedPrecondition,
                 "{} {}: {}: give an address as tcp://HOST:PORT, with * for every interface", what,
                 endpoint, zmq.text_of(number));
  }

  const ZmqLibrary& zmq;
  void* context = nullptr;  // of this socket alone, with one thread of the library's
  void* socket = nullptr;
};

ZmqSocket::ZmqSocket(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ZmqSocket::~ZmqSocket() = default;
ZmqSocket::ZmqSocket(ZmqSocket&&) noexcept = default;
ZmqSocket& ZmqSocket::operator=(ZmqSocket&&) noexcept = default;

Result<ZmqSocket> ZmqSocket::open(ZmqKind kind) {
  ESP_ASSIGN_OR_RETURN(const ZmqLibrary* const zmq, ZmqLibrary::load());
  auto impl = std::make_unique<Impl>(*zmq);
  impl->context = zmq->ctx_new();
  if (impl->context != nullptr) impl->socket = zmq->socket(impl->context, type_of(kind));
  if (impl->socket == nullptr)
    return fail(error(StatusCode::kResourceExhausted, "a socket of ZeroMQ: {}: raise ulimit -n",
                      zmq->text_of(zmq->last_errno())));
  const bool set = impl->set(ZMQ_LINGER, 0) && impl->set(ZMQ_SNDHWM, kQueuedMax) &&
                   impl->set(ZMQ_RCVHWM, kQueuedMax) &&
                   impl->set(ZMQ_MAXMSGSIZE, kMessageBytesMax) && impl->set(ZMQ_IPV6, 1);
  const bool subscribed =
      kind != ZmqKind::kSubscribe || zmq->set_option(impl->socket, ZMQ_SUBSCRIBE, "", 0) == 0;
  if (!set || !subscribed)
    return fail(error(StatusCode::kInternal, "a socket of ZeroMQ takes no options: {}",
                      zmq->text_of(zmq->last_errno())));
  return ZmqSocket(std::move(impl));
}

Status ZmqSocket::bind(const std::string& endpoint) {
  return impl_->zmq.bind(impl_->socket, endpoint.c_str()) == 0
             ? Status()
             : impl_->failure("listening at", endpoint);
}

Status ZmqSocket::connect(const std::string& endpoint) {
  return impl_->zmq.connect(impl_->socket, endpoint.c_str()) == 0
             ? Status()
             : impl_->failure("connecting to", endpoint);
}

std::string ZmqSocket::bound_endpoint() const {
  std::array<char, 256> text{};
  size_t size = text.size();
  if (impl_->zmq.get_option(impl_->socket, ZMQ_LAST_ENDPOINT, text.data(), &size) != 0) return "";
  return text.data();
}

Status ZmqSocket::send(std::span<const std::string_view> frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    // A message is queued whole or refused with its first frame.
    if (impl_->zmq.send(impl_->socket, frames[i].data(), frames[i].size(), ZMQ_DONTWAIT | more) < 0)
      return error(StatusCode::kUnavailable, "a message of ZeroMQ was not sent: {}",
                   impl_->zmq.text_of(impl_->zmq.last_errno()));
  }
  return {};
}

std::vector<std::string> ZmqSocket::receive() {
  std::vector<std::string> frames;
  const ZmqLibrary& zmq = impl_->zmq;
  for (bool more = true; more;) {
    zmq_msg_t message;
    zmq.msg_init(&message);
    if (zmq.msg_recv(&message, impl_->socket, ZMQ_DONTWAIT) < 0) {
      zmq.msg_close(&message);
      return {};  // frames of one message come together, so this is its first
    }
    frames.emplace_back(static_cast<const char*>(zmq.msg_data(&message)), zmq.msg_size(&message));
    more = zmq.msg_more(&message) != 0;
    zmq.msg_close(&message);
  }
  return frames;
}

bool wait_readable(std::span<const ZmqSocket* const> sockets, Duration timeout) {
  std::vector<zmq_pollitem_t> items;
  items.reserve(sockets.size());
  for (const ZmqSocket* socket : sockets)
    items.push_back({socket->impl_->socket, 0, ZMQ_POLLIN, 0});
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  return sockets.front()->impl_->zmq.poll(items.data(), static_cast<int>(items.size()), ms) > 0;
}

}  // namespace espalier::net
