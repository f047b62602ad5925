/* What the C interfaces share: how a call ended, and how a function is exported. */
#ifndef ESPALIER_STATUS_C_H_
#define ESPALIER_STATUS_C_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ESP_API __attribute__((visibility("default")))
#else
#define ESP_API
#endif

typedef enum esp_status {
  ESP_OK = 0,
  ESP_INVALID_ARGUMENT = 1,   /* the input is wrong; the message says where */
  ESP_UNIMPLEMENTED = 2,      /* known, and not supported by this model or build */
  ESP_RESOURCE_EXHAUSTED = 3, /* a queue is full, the input is too large, or memory is short */
  ESP_DEADLINE_EXCEEDED = 4,  /* the call took longer than its limit */
  ESP_INTERNAL = 5,
  ESP_NOT_FOUND = 6,           /* no such file or model */
  ESP_FAILED_PRECONDITION = 7, /* not possible in this state */
  ESP_UNAVAILABLE = 8,         /* the engine stops, or a device is missing */
  ESP_ABORTED = 9,             /* the call was cancelled */
  ESP_DATA_LOSS = 10           /* a file is corrupt or truncated */
} esp_status;

#endif /* ESPALIER_STATUS_C_H_ */
