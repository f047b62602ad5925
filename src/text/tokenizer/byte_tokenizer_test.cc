#include "text/tokenizer/byte_tokenizer.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "text/detokenizer.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

using Ids = std::vector<TokenId>;

TEST(ByteTokenizer, BytesAndSpecials) {
  const auto tokenizer = make_byte_tokenizer(true);
  EXPECT_EQ(tokenizer->vocab_size(), kByteVocabSize);
  EXPECT_EQ(tokenizer->encode("a</s>\xFF", {}), (Ids{kByteBosId, 'a', kByteEosId, 255}));
  EXPECT_EQ(tokenizer->encode("</s>", {.add_special_tokens = false, .parse_special = false}),
            (Ids{'<', '/', 's', '>'}));
  EXPECT_EQ(tokenizer->decode({kByteBosId, 'a', kByteEosId}), "a");
  EXPECT_EQ(tokenizer->decode({kByteBosId, 'a', kByteEosId}, {.skip_special_tokens = false}),
            "<s>a</s>");
  EXPECT_TRUE(tokenizer->is_special(kByteEosId));
  EXPECT_FALSE(tokenizer->is_special('a'));
  for (TokenId id = 0; id < kByteVocabSize; ++id) {
    EXPECT_EQ(tokenizer->token_to_id(tokenizer->id_to_token(id)), id);
  }
}

TEST(ByteTokenizer, StreamEqualsDecode) {
  const auto tokenizer = make_byte_tokenizer();
  Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    Ids ids;
    for (int i = 0; i < 40; ++i) ids.push_back(static_cast<TokenId>(rng.below(300)));
    Detokenizer detokenizer(*tokenizer, {});
    std::string text;
    for (const TokenId id : ids) {
      text += detokenizer.push(id);
      ASSERT_TRUE(is_valid_utf8(text));
    }
    EXPECT_EQ(text + detokenizer.flush(), tokenizer->decode(ids)) << "round " << round;
  }
}

}  // namespace
}  // namespace espalier
