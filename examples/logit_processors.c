/* Two logit processors as a library of an operator's:
 *
 *   only  its text is a list of token ids, "5 17 300": no other token may come
 *   calm  its text is a number: it is taken from the logit of a token for each of the last ten tokens
 *         that equal it
 *
 *   cc -shared -fPIC -Iinclude examples/logit_processors.c -o logit_processors.so
 *   espalier serve --logit-processor-library logit_processors.so
 *   curl localhost:30000/generate -d '{"text": "Once", "sampling_params":
 *       {"logit_processor": "calm", "logit_processor_params": "2.5"}}' */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/logit_processor.h"

/* allowed[id] is 1 for ids that may come. */
static void* only_create(const char* params, int32_t vocab_size, char* error, size_t error_size) {
  char* const allowed = calloc((size_t)vocab_size, 1);
  if (allowed == NULL) {
    snprintf(error, error_size, "there is no memory");
    return NULL;
  }
  int count = 0;
  char* end = NULL;
  for (const char* at = params;; at = end, ++count) {
    const long id = strtol(at, &end, 10);
    if (end == at) break;
    if (id < 0 || id >= vocab_size) {
      snprintf(error, error_size, "%ld is no token: ids are in [0, %d)", id, vocab_size);
      free(allowed);
      return NULL;
    }
    allowed[id] = 1;
  }
  if (count > 0 && end[strspn(end, " ")] == '\0') return allowed;
  snprintf(error, error_size, "give token ids with spaces between them, not '%s'", params);
  free(allowed);
  return NULL;
}

static int only_apply(void* state, const espalier_logits* logits, char* error, size_t error_size) {
  const char* const allowed = state;
  (void)error, (void)error_size;
  for (int32_t id = 0; id < logits->vocab_size; ++id)
    if (!allowed[id]) logits->logits[id] = -INFINITY;
  return 0;
}

static void* calm_create(const char* params, int32_t vocab_size, char* error, size_t error_size) {
  (void)vocab_size;
  char* end = NULL;
  const float penalty = strtof(params, &end);
  float* const state = malloc(sizeof(float));
  if (end == params || *end != '\0' || !isfinite(penalty) || state == NULL) {
    snprintf(error, error_size, "give a number, not '%s'", params);
    free(state);
    return NULL;
  }
  *state = penalty;
  return state;
}

static int calm_apply(void* state, const espalier_logits* logits, char* error, size_t error_size) {
  (void)error, (void)error_size;
  const int32_t begin = logits->num_tokens > 10 ? logits->num_tokens - 10 : 0;
  for (int32_t i = begin; i < logits->num_tokens; ++i)
    logits->logits[logits->tokens[i]] -= *(const float*)state;
  return 0;
}

static const espalier_logit_processor kProcessors[] = {
    {ESPALIER_LOGIT_PROCESSOR_ABI, "only", "no other token may come", only_create, only_apply,
     free},
    {ESPALIER_LOGIT_PROCESSOR_ABI, "calm", "recent tokens come less often", calm_create, calm_apply,
     free},
};

const espalier_logit_processor* espalier_logit_processors(int32_t index) {
  return index < 2 ? &kProcessors[index] : NULL;
}
