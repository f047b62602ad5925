/* Writes a text that a JSON Schema allows, with a vocabulary of single bytes: at each step the
 * first allowed token. It checks what the matcher answers on the way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "espalier/grammar_c.h"

enum { kEos = 256, kVocabSize = 257, kWords = (kVocabSize + 31) / 32 };

static void require(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "failed: %s\n", what);
  exit(1);
}

static esp_vocabulary* byte_vocabulary(void) {
  static char bytes[256];
  const char* tokens[kVocabSize];
  size_t sizes[kVocabSize];
  const int32_t eos[] = {kEos};
  char error[256] = "";
  esp_vocabulary* vocabulary = NULL;
  int i;
  for (i = 0; i < 256; ++i) {
    bytes[i] = (char)i;
    tokens[i] = &bytes[i];
    sizes[i] = 1;
  }
  tokens[kEos] = "";
  sizes[kEos] = 0;
  require(esp_vocabulary_create(tokens, sizes, kVocabSize, NULL, 0, eos, 1, &vocabulary, error,
                                sizeof error) == ESP_OK,
          error);
  return vocabulary;
}

static int allowed(const uint32_t* mask, int token) {
  return (mask[token / 32] >> (token % 32)) & 1;
}

int main(void) {
  const char* schema =
      "{\"type\":\"object\",\"properties\":{\"unit\":{\"enum\":[\"metre\"]}},"
      "\"required\":[\"unit\"],\"additionalProperties\":false}";
  const char* answer = "{\"unit\":\"metre\"}";
  char error[256] = "", forced[64];
  uint32_t mask[kWords];
  size_t i, count;
  esp_vocabulary* vocabulary = byte_vocabulary();
  esp_grammar* grammar = NULL;
  esp_matcher *matcher = NULL, *fork = NULL;

  require(esp_grammar_compile(vocabulary, ESP_GRAMMAR_JSON_SCHEMA, "{\"type\":", 8, NULL, &grammar,
                              error, sizeof error) == ESP_INVALID_ARGUMENT,
          "a broken schema is refused");
  require(error[0] != '\0' && grammar == NULL, "the refusal has a message");
  require(esp_grammar_compile(vocabulary, ESP_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), NULL,
                              &grammar, error, sizeof error) == ESP_OK,
          error);
  require(esp_matcher_create(grammar, &matcher, error, sizeof error) == ESP_OK, error);
  esp_grammar_free(grammar); /* the matcher keeps it */
  esp_vocabulary_free(vocabulary);
  require(esp_matcher_mask_words(matcher) == kWords, "a mask has a bit for each token");

  for (i = 0; i < strlen(answer); ++i) {
    require(esp_matcher_fill_mask(matcher, mask, kWords), "a token may come");
    require(allowed(mask, answer[i]), "the answer's byte may come");
    require(!allowed(mask, kEos) && !esp_matcher_can_end(matcher), "the answer is not complete");
    require(esp_matcher_accept_token(matcher, answer[i]), "the byte is accepted");
  }
  require(!esp_matcher_accept_token(matcher, 'x'), "text behind the answer is refused");
  require(!esp_matcher_accept_token(matcher, 100000), "an unknown token is refused");
  require(esp_matcher_fork(matcher, &fork, error, sizeof error) == ESP_OK, error);
  require(esp_matcher_accept_token(matcher, kEos) && esp_matcher_ended(matcher), "the answer ends");

  count = esp_matcher_steps(fork);
  require(count == strlen(answer) && !esp_matcher_rollback(fork, count + 1), "steps are counted");
  require(esp_matcher_rollback(fork, 7), "7 steps are taken back");
  count = esp_matcher_forced_string(fork, forced, sizeof forced);
  require(count >= 5 && memcmp(forced, "metre", 5) == 0, "what must come is known");
  require(!esp_matcher_exhausted(fork), "no limit is reached");
  esp_matcher_free(fork);
  esp_matcher_free(matcher);
  printf("%s\n", answer);
  return 0;
}
