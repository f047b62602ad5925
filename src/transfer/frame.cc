#include "transfer/frame.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <random>

#include "base/big_endian.h"
#include "base/sha256.h"

namespace espalier::transfer {
namespace {

constexpr size_t kTextBytesMax = 4096;

// Takes fields off the front of a payload. Behind its end every field is zero, and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  std::string_view take(size_t count) {
    if (count > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <typename T>
  T number() {
    return static_cast<T>(read_big_endian(take(sizeof(T))));
  }
  float real() { return std::bit_cast<float>(number<uint32_t>()); }
  std::string text() {
    const auto count = number<uint32_t>();
    if (count > kTextBytesMax) ok_ = false;
    return std::string(ok_ ? take(count) : std::string_view());
  }
  template <size_t N>
  std::array<uint8_t, N> array() {
    std::array<uint8_t, N> to{};
    std::ranges::copy(take(N), to.begin());
    return to;
  }
  // How many elements follow, of at least so many bytes each.
  size_t count(size_t element_bytes_min) {
    const auto count = number<uint32_t>();
    if (count > bytes_.size() / element_bytes_min) ok_ = false;
    return ok_ ? count : 0;
  }
  std::string_view rest() { return take(bytes_.size()); }
  bool ok() const { return ok_; }
  bool complete() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

void append_text(std::string& out, std::string_view text) {
  text = text.substr(0, kTextBytesMax);
  append_big_endian(out, text.size(), 4);
  out += text;
}

template <size_t N>
void append_array(std::string& out, const std::array<uint8_t, N>& bytes) {
  out.append(bytes.begin(), bytes.end());
}

void append_real(std::string& out, float value) {
  append_big_endian(out, std::bit_cast<uint32_t>(value), 4);
}

void append_tokens(std::string& out, const std::vector<std::pair<TokenId, float>>& tokens) {
  append_big_endian(out, tokens.size(), 4);
  for (const auto& [id, logprob] : tokens) {
    append_big_endian(out, static_cast<uint32_t>(id), 4);
    append_real(out, logprob);
  }
}

void append_logprobs(std::string& out, const TokenLogprobs& logprobs) {
  append_real(out, logprobs.logprob);
  append_tokens(out, logprobs.top);
  append_tokens(out, logprobs.wanted);
}

std::vector<std::pair<TokenId, float>> read_tokens(Reader& reader) {
  std::vector<std::pair<TokenId, float>> tokens(reader.count(8));
  for (auto& [id, logprob] : tokens) {
    id = reader.number<TokenId>();
    logprob = reader.real();
  }
  return tokens;
}

TokenLogprobs read_logprobs(Reader& reader) {
  TokenLogprobs logprobs;
  logprobs.logprob = reader.real();
  logprobs.top = read_tokens(reader);
  logprobs.wanted = read_tokens(reader);
  return logprobs;
}

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

template <typename T>
Result<T> checked(const Reader& reader, T value, std::string_view what) {
  if (!reader.complete())
    return fail(error(StatusCode::kDataLoss,
                      "a malformed {} was received: is the other side an Espalier server's "
                      "bootstrap port, of this version?",
                      what));
  return value;
}

}  // namespace

Status check_shapes(const KvShape& prefill, const KvShape& decode) {
  const auto differs = [](std::string_view what, const auto& theirs, const auto& ours) {
    return error(StatusCode::kFailedPrecondition,
                 "the prefill server's {} is \"{}\", the decode server's \"{}\": start both with "
                 "the same model and the same settings",
                 what, theirs, ours);
  };
  if (prefill.model != decode.model)
    return differs("model (fingerprint of its weights)", prefill.model, decode.model);
  if (prefill.page_size != decode.page_size)
    return differs("page size (--page-size)", prefill.page_size, decode.page_size);
  if (prefill.layout != decode.layout)
    return differs("layout of the KV cache (--kv-cache-dtype)", prefill.layout, decode.layout);
  if (prefill.computer != decode.computer)
    return differs("way of computing (instruction set, ranks)", prefill.computer, decode.computer);
  if (prefill.page_bytes != decode.page_bytes)
    return differs("size of a page", prefill.page_bytes, decode.page_bytes);
  return {};
}

std::string encode(const Challenge& challenge) {
  std::string out;
  append_big_endian(out, challenge.version, 4);
  append_array(out, challenge.nonce);
  return out;
}

Result<Challenge> decode_challenge(std::string_view payload) {
  Reader reader(payload);
  Challenge challenge;
  challenge.version = reader.number<uint32_t>();
  challenge.nonce = reader.array<16>();
  return checked(reader, challenge, "challenge");
}

std::string encode(const Hello& hello) {
  std::string out;
  append_big_endian(out, hello.version, 4);
  append_array(out, hello.nonce);
  append_big_endian(out, hello.key.room, 8);
  append_big_endian(out, hello.key.index, 4);
  append_text(out, hello.shape.model);
  append_text(out, hello.shape.layout);
  append_text(out, hello.shape.computer);
  append_big_endian(out, hello.shape.page_size, 4);
  append_big_endian(out, hello.shape.page_bytes, 8);
  append_array(out, hello.prompt.bytes);
  append_big_endian(out, hello.num_tokens, 4);
  append_big_endian(out, hello.num_cached, 4);
  append_text(out, hello.maps);
  return out;
}

Result<Hello> decode_hello(std::string_view payload) {
  Reader reader(payload);
  Hello hello;
  hello.version = reader.number<uint32_t>();
  hello.nonce = reader.array<16>();
  hello.key.room = reader.number<uint64_t>();
  hello.key.index = reader.number<uint32_t>();
  hello.shape.model = reader.text();
  hello.shape.layout = reader.text();
  hello.shape.computer = reader.text();
  hello.shape.page_size = reader.number<uint32_t>();
  hello.shape.page_bytes = reader.number<uint64_t>();
  hello.prompt.bytes = reader.array<16>();
  hello.num_tokens = reader.number<uint32_t>();
  hello.num_cached = reader.number<uint32_t>();
  hello.maps = reader.text();
  return checked(reader, std::move(hello), "greeting");
}

std::string encode(const Failure& failure) {
  std::string out;
  append_big_endian(out, static_cast<uint64_t>(failure.code), 4);
  append_text(out, failure.message);
  return out;
}

// Codes of other versions are internal errors here.
Result<Failure> decode_failure(std::string_view payload) {
  Reader reader(payload);
  const auto code = reader.number<uint32_t>();
  Failure failure{.message = reader.text()};
  if (code > 0 && code < static_cast<uint32_t>(StatusCode::kInternal))
    failure.code = static_cast<StatusCode>(code);
  return checked(reader, std::move(failure), "failure");
}

std::string encode(const InputLogprobs& logprobs) {
  std::string out;
  append_big_endian(out, logprobs.first, 4);
  append_big_endian(out, logprobs.logprobs.size(), 4);
  for (const TokenLogprobs& one : logprobs.logprobs) append_logprobs(out, one);
  return out;
}

Result<InputLogprobs> decode_logprobs(std::string_view payload) {
  constexpr size_t kLeastBytes = 12;
  Reader reader(payload);
  InputLogprobs logprobs{.first = reader.number<uint32_t>()};
  const size_t count = reader.count(kLeastBytes);
  for (size_t i = 0; i < count && reader.ok(); ++i)
    logprobs.logprobs.push_back(read_logprobs(reader));
  return checked(reader, std::move(logprobs), "list of log-probabilities");
}

std::string encode(const FirstToken& first) {
  std::string out;
  append_big_endian(out, static_cast<uint32_t>(first.token), 4);
  append_big_endian(out, first.num_tokens, 4);
  append_big_endian(out, first.cached_tokens, 4);
  append_logprobs(out, first.logprobs);
  return out;
}

Result<FirstToken> decode_first(std::string_view payload) {
  Reader reader(payload);
  FirstToken first;
  first.token = reader.number<TokenId>();
  first.num_tokens = reader.number<uint32_t>();
  first.cached_tokens = reader.number<uint32_t>();
  first.logprobs = read_logprobs(reader);
  return checked(reader, std::move(first), "first token");
}

std::string encode(const StagingHandle& handle) {
  std::string out;
  append_text(out, handle.kind);
  append_text(out, handle.bytes);
  append_array(out, handle.nonce);
  return out;
}

Result<StagingHandle> decode_staging(std::string_view payload) {
  Reader reader(payload);
  StagingHandle handle{.kind = reader.text(), .bytes = reader.text()};
  handle.nonce = reader.array<16>();
  return checked(reader, std::move(handle), "handle of staging memory");
}

uint32_t StagedView::num_pages() const {
  uint32_t count = 0;
  for (const StagedPart& part : parts) count += static_cast<uint32_t>(part.num_pages);
  return count;
}

std::string encode(const StagedView& staged) {
  std::string out;
  append_big_endian(out, staged.first, 4);
  append_big_endian(out, static_cast<uint32_t>(staged.planes.begin), 4);
  append_big_endian(out, static_cast<uint32_t>(staged.planes.end), 4);
  append_big_endian(out, staged.completes ? 1 : 0, 1);
  append_big_endian(out, staged.parts.size(), 4);
  for (const StagedPart& part : staged.parts) {
    append_big_endian(out, static_cast<uint64_t>(part.block), 8);
    for (const int32_t number : {part.block_pages, part.first, part.num_pages})
      append_big_endian(out, static_cast<uint32_t>(number), 4);
  }
  return out;
}

Result<StagedView> decode_staged(std::string_view payload) {
  constexpr size_t kPartBytes = 20;
  Reader reader(payload);
  StagedView staged{.first = reader.number<uint32_t>()};
  staged.planes = {reader.number<int32_t>(), reader.number<int32_t>()};
  staged.completes = reader.number<uint8_t>() != 0;
  staged.parts.resize(reader.count(kPartBytes));
  uint64_t num_pages = 0;
  bool ok = staged.planes.begin >= 0 && staged.planes.begin <= staged.planes.end;
  for (StagedPart& part : staged.parts) {
    part.block = reader.number<int64_t>();
    for (int32_t* number : {&part.block_pages, &part.first, &part.num_pages})
      *number = reader.number<int32_t>();
    ok &= part.num_pages > 0;
    num_pages += static_cast<uint32_t>(part.num_pages);
  }
  if (!ok || num_pages > UINT32_MAX - uint64_t{staged.first})
    return fail(error(StatusCode::kDataLoss, "a malformed frame of staged pages was received"));
  return checked(reader, std::move(staged), "frame of staged pages");
}

std::string encode_pages_header(uint32_t first, std::span<const std::byte> bytes) {
  std::string out;
  append_big_endian(out, first, 4);
  append_big_endian(out, checksum(bytes), 8);
  return out;
}

Result<PagesView> decode_pages(std::string_view payload) {
  Reader reader(payload);
  PagesView pages{.first = reader.number<uint32_t>(), .checksum = reader.number<uint64_t>()};
  pages.bytes = std::as_bytes(std::span(reader.rest()));
  if (reader.complete() && checksum(pages.bytes) != pages.checksum)
    return fail(error(StatusCode::kDataLoss,
                      "pages were damaged on their way: their checksum does not match"));
  return checked(reader, pages, "page");
}

Nonce draw_nonce() {
  std::random_device device;  // a nonce that is known before could be answered by a recorded proof
  Nonce nonce;
  for (uint8_t& byte : nonce) byte = static_cast<uint8_t>(device());
  return nonce;
}

Proof prove(std::string_view token, std::initializer_list<std::string_view> texts) {
  constexpr size_t kBlockBytes = 64;
  std::array<char, kBlockBytes> key{};
  if (token.size() <= kBlockBytes) {
    std::ranges::copy(token, key.begin());
  } else {
    Sha256 hash;
    hash.update(token);
    std::ranges::copy(hash.finish(), key.begin());
  }
  const auto padded = [&](char pad) {
    std::array<char, kBlockBytes> block = key;
    for (char& byte : block) byte = static_cast<char>(byte ^ pad);
    return block;
  };
  const auto inner_key = padded(0x36), outer_key = padded(0x5c);
  Sha256 inner, outer;
  inner.update(std::string_view(inner_key.data(), inner_key.size()));
  for (const std::string_view text : texts) inner.update(text);
  const Sha256::Digest digest = inner.finish();
  outer.update(std::string_view(outer_key.data(), outer_key.size()));
  outer.update(std::as_bytes(std::span(digest)));
  return outer.finish();
}

bool equal(const Proof& a, std::string_view b) {
  if (a.size() != b.size()) return false;
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ static_cast<uint8_t>(b[i]);
  return difference == 0;
}

}  // namespace espalier::transfer
