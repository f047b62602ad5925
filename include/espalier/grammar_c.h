/* Structured generation as a library: which tokens may come next so that a text obeys a JSON
 * Schema, a regular expression, an EBNF grammar or a structural tag. Link libespalier_grammar
 * (pkg-config espalier_grammar, or Espalier::grammar of find_package(Espalier)).
 *
 * Order of use: a vocabulary, a grammar compiled for it, a matcher for each sequence.
 *
 * Ownership: every create, compile or fork function gives an object that its free function
 * releases; free functions accept NULL. A grammar keeps its vocabulary alive and a matcher its
 * grammar, so objects may be freed in any order. Inputs are copied.
 *
 * Thread safety: vocabularies and grammars may be used from any threads at once. One matcher is
 * used by one thread at a time; matchers of one grammar may be used from different threads.
 *
 * Errors: functions that can fail return a status and write a message that ends with a zero byte to
 * `error`, cut to `error_size` bytes. `error` may be NULL when error_size is 0. */
#ifndef ESPALIER_GRAMMAR_C_H_
#define ESPALIER_GRAMMAR_C_H_

#include "espalier/status_c.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct esp_vocabulary esp_vocabulary;
typedef struct esp_grammar esp_grammar;
typedef struct esp_matcher esp_matcher;

typedef enum esp_grammar_kind {
  ESP_GRAMMAR_REGEX = 0,
  ESP_GRAMMAR_EBNF = 1,
  ESP_GRAMMAR_JSON_SCHEMA = 2,
  ESP_GRAMMAR_ANY_JSON = 3, /* any JSON value; source is not read */
  ESP_GRAMMAR_STRUCTURAL_TAG = 4
} esp_grammar_kind;

typedef struct esp_grammar_options {
  size_t struct_size; /* sizeof(esp_grammar_options), so that fields can be added */
  int any_order;      /* JSON Schema: properties in any order, instead of the declared one */
  double compile_seconds_max; /* 0: 5 seconds */
} esp_grammar_options;

/* Token t stands for the token_sizes[t] bytes at tokens[t]; both arrays are [vocab_size]. Special
 * ids are never allowed in a text; any of the eos ids ends it. Ids are in [0, vocab_size), in any
 * order. */
ESP_API esp_status esp_vocabulary_create(const char* const* tokens, const size_t* token_sizes,
                                         size_t vocab_size, const int32_t* special_ids,
                                         size_t num_special_ids, const int32_t* eos_ids,
                                         size_t num_eos_ids, esp_vocabulary** vocabulary,
                                         char* error, size_t error_size);
ESP_API void esp_vocabulary_free(esp_vocabulary* vocabulary);

/* `source` has source_size bytes of UTF-8. `options` may be NULL. */
ESP_API esp_status esp_grammar_compile(const esp_vocabulary* vocabulary, esp_grammar_kind kind,
                                       const char* source, size_t source_size,
                                       const esp_grammar_options* options, esp_grammar** grammar,
                                       char* error, size_t error_size);
ESP_API void esp_grammar_free(esp_grammar* grammar);

ESP_API esp_status esp_matcher_create(const esp_grammar* grammar, esp_matcher** matcher,
                                      char* error, size_t error_size);
/* A copy that goes its own way from here. */
ESP_API esp_status esp_matcher_fork(const esp_matcher* matcher, esp_matcher** fork, char* error,
                                    size_t error_size);
ESP_API void esp_matcher_free(esp_matcher* matcher);

/* 1: accepted, one step more. 0: the grammar does not allow it, and nothing changed. */
ESP_API int esp_matcher_accept_token(esp_matcher* matcher, int32_t token);
ESP_API int esp_matcher_accept_bytes(esp_matcher* matcher, const char* bytes, size_t size);

/* Words of 32 bits in a mask: vocab_size / 32, rounded up. */
ESP_API size_t esp_matcher_mask_words(const esp_matcher* matcher);
/* Sets bit t % 32 of word t / 32 when token t may come next, and clears the others. `num_words` is
 * esp_matcher_mask_words(). 0: no token may come, or num_words is wrong. */
ESP_API int esp_matcher_fill_mask(esp_matcher* matcher, uint32_t* words, size_t num_words);

/* Writes at most `size` bytes that must come next, whatever the tokens; returns their number. */
ESP_API size_t esp_matcher_forced_string(esp_matcher* matcher, char* bytes, size_t size);

/* Takes back the last `steps` accepted calls. 0, and nothing changed, when there are fewer. */
ESP_API int esp_matcher_rollback(esp_matcher* matcher, size_t steps);
ESP_API size_t esp_matcher_steps(const esp_matcher* matcher);

ESP_API int esp_matcher_can_end(const esp_matcher* matcher); /* the text so far is complete */
ESP_API int esp_matcher_ended(const esp_matcher* matcher);   /* an eos token was accepted */
/* A limit on automaton states was reached: masks are no longer exact and the sequence must fail. */
ESP_API int esp_matcher_exhausted(const esp_matcher* matcher);

#ifdef __cplusplus
}
#endif

#endif /* ESPALIER_GRAMMAR_C_H_ */
