// Every frame comes back as it was sent; whatever bytes come instead are a Status.
#include "transfer/frame.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "transfer/test_prompt.h"

namespace espalier::transfer {
namespace {

TEST(Frame, RoundTrips) {
  const TestPrompt prompt{
      .key = {.room = ~0ull >> 1, .index = 3}, .num_tokens = 9, .num_cached = 1};
  Hello hello = prompt.hello();
  hello.nonce = draw_nonce();
  const auto back = decode_hello(encode(hello));
  ASSERT_TRUE(back);
  EXPECT_EQ(encode(*back), encode(hello));
  EXPECT_EQ(back->key, hello.key);
  EXPECT_EQ(back->shape, hello.shape);
  const auto first = decode_first(encode(prompt.first()));
  ASSERT_TRUE(first);
  EXPECT_EQ(encode(*first), encode(prompt.first()));
  EXPECT_EQ(first->logprobs.top, prompt.first().logprobs.top);
  const auto failure = decode_failure(encode(Failure{StatusCode::kUnavailable, "why"}));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, StatusCode::kUnavailable);
  EXPECT_EQ(failure->message, "why");
  EXPECT_EQ(decode_failure(encode(Failure{StatusCode::kOk, ""}))->code, StatusCode::kInternal)
      << "a failure is never ok";
  const InputLogprobs logprobs{.first = 5, .logprobs = {{-1.f, {{1, -1.f}}, {}}, {-2.f, {}, {}}}};
  const auto list = decode_logprobs(encode(logprobs));
  ASSERT_TRUE(list);
  EXPECT_EQ(encode(*list), encode(logprobs));
}

TEST(Frame, StagedPagesRoundTrip) {
  const StagingHandle handle{.kind = "memfd", .bytes = std::string("a\0b", 3), .nonce = {7, 9}};
  const auto opened = decode_staging(encode(handle));
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->bytes, handle.bytes);
  EXPECT_EQ(opened->nonce, handle.nonce);
  const StagedView staged{.first = 5,
                          .planes = {2, 9},
                          .completes = true,
                          .parts = {{1ll << 40, 16, 3, 13}, {4096, 16, 0, 16}}};
  const auto back = decode_staged(encode(staged));
  ASSERT_TRUE(back);
  EXPECT_EQ(encode(*back), encode(staged));
  EXPECT_EQ(back->num_pages(), 29u);
  StagedView bad = staged;
  bad.parts[1].num_pages = -1;
  EXPECT_FALSE(decode_staged(encode(bad)));
  bad = staged;
  bad.first = UINT32_MAX - 28;  // its end is no number of 32 bits
  EXPECT_FALSE(decode_staged(encode(bad)));
  bad = staged;
  bad.planes = {9, 2};
  EXPECT_FALSE(decode_staged(encode(bad)));
}

TEST(Frame, DamagedPagesAreFound) {
  std::vector<std::byte> bytes(640);
  (void)test_fill(640)(0, bytes);
  std::string payload = encode_pages_header(2, bytes);
  payload.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  ASSERT_TRUE(decode_pages(payload));
  EXPECT_EQ(decode_pages(payload)->first, 2u);
  for (size_t at = 4; at < payload.size(); ++at) {
    std::string damaged = payload;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    EXPECT_EQ(decode_pages(damaged).error().code(), StatusCode::kDataLoss);
  }
}

TEST(Frame, MutatedPayloadsAreRefusedOrRead) {
  const char* const scale = std::getenv("ESPALIER_FUZZ_SCALE");
  const int num_rounds = 10'000 * (scale == nullptr ? 1 : std::max(1, std::atoi(scale)));
  const TestPrompt prompt{.num_tokens = 9};
  const std::vector<std::string> payloads = {
      encode(Challenge{}),
      encode(prompt.hello()),
      encode(Failure{StatusCode::kDataLoss, "text"}),
      encode(prompt.first()),
      encode(InputLogprobs{1, std::vector<TokenLogprobs>(3, prompt.first().logprobs)}),
      encode(StagingHandle{.kind = "cuda-ipc", .bytes = std::string(64, 'x')}),
      encode(StagedView{.first = 1, .planes = {0, 2}, .parts = {{1, 2, 0, 2}, {9, 2, 1, 1}}})};
  Rng rng(0x7a4);
  for (int i = 0; i < num_rounds; ++i) {
    std::string payload = payloads[rng.below(payloads.size())];
    for (uint64_t n = rng.below(4); n-- > 0;) {
      const size_t at = rng.below(payload.size() + 1);
      if (rng.below(3) == 0)
        payload.resize(at);
      else if (rng.below(2) == 0)
        payload.insert(at, rng.below(20), static_cast<char>(rng()));
      else if (at < payload.size())
        payload[at] = static_cast<char>(rng());
      if (payload.empty()) break;
    }
    SCOPED_TRACE(i);
    // What is read is what is written again: nothing is made up.
    const auto rewritten = [](const auto& read, size_t size) {
      return read ? encode(*read).size() : size;
    };
    EXPECT_EQ(rewritten(decode_challenge(payload), payload.size()), payload.size());
    EXPECT_EQ(rewritten(decode_hello(payload), payload.size()), payload.size());
    EXPECT_EQ(rewritten(decode_first(payload), payload.size()), payload.size());
    EXPECT_EQ(rewritten(decode_logprobs(payload), payload.size()), payload.size());
    EXPECT_EQ(rewritten(decode_staging(payload), payload.size()), payload.size());
    EXPECT_EQ(rewritten(decode_staged(payload), payload.size()), payload.size());
    (void)decode_failure(payload);
    (void)decode_pages(payload);
  }
}

std::string hex(const Proof& proof) {
  std::string text;
  for (const uint8_t byte : proof) text += fmt::format("{:02x}", byte);
  return text;
}

TEST(Proof, IsHmacSha256) {  // test cases 2, 6 of RFC 4231
  EXPECT_EQ(hex(prove("Jefe", {"what do ya want ", "for nothing?"})),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(prove(std::string(131, '\xaa'),
                      {"Test Using Larger Than Block-Size Key - Hash Key First"})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  const Proof proof = prove("a", {"b"});
  EXPECT_TRUE(equal(proof, text_of(proof)));
  EXPECT_FALSE(equal(proof, text_of(prove("b", {"b"}))));
  EXPECT_FALSE(equal(proof, ""));
}

TEST(KvShape, DifferencesAreNamed) {
  const KvShape shape = test_shape();
  EXPECT_TRUE(check_shapes(shape, shape).ok());
  const auto message = [&](auto change) {
    KvShape other = shape;
    change(other);
    const Status status = check_shapes(shape, other);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    return status.message();
  };
  EXPECT_NE(message([](KvShape& s) { s.model = "x"; }).find("model"), std::string::npos);
  EXPECT_NE(message([](KvShape& s) { s.layout = "x"; }).find("--kv-cache-dtype"),
            std::string::npos);
  EXPECT_NE(message([](KvShape& s) { s.page_size = 8; }).find("--page-size"), std::string::npos);
  EXPECT_NE(message([](KvShape& s) { s.computer = "x"; }).find("ranks"), std::string::npos);
  EXPECT_NE(message([](KvShape& s) { s.page_bytes = 1; }).find("size of a page"),
            std::string::npos);
}

}  // namespace
}  // namespace espalier::transfer
