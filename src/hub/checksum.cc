#include "hub/checksum.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/check.h"

namespace espalier::hub {

struct Checksum::Impl {
  EVP_MD_CTX* context = nullptr;
  ~Impl() { EVP_MD_CTX_free(context); }
};

Checksum::Checksum(std::string etag, int64_t size_bytes) : etag_(std::move(etag)) {
  const bool is_hex = etag_.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hex || (etag_.size() != 64 && etag_.size() != 40)) return;
  impl_ = std::make_unique<Impl>();
  impl_->context = EVP_MD_CTX_new();
  const EVP_MD* kind = etag_.size() == 64 ? EVP_sha256() : EVP_sha1();
  ESP_CHECK(EVP_DigestInit_ex(impl_->context, kind, nullptr) == 1);
  if (etag_.size() == 40) {
    const std::string head = fmt::format("blob {}", size_bytes);
    add({head.c_str(), head.size() + 1});
  }
}

Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;
Checksum::~Checksum() = default;

void Checksum::add(std::string_view bytes) {
  if (impl_ != nullptr) EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size());
}

bool Checksum::matches() {
  if (impl_ == nullptr) return true;
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  ESP_CHECK(EVP_DigestFinal_ex(impl_->context, sum, &length) == 1);
  std::string text;
  for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", sum[i]);
  return text == etag_;
}

}  // namespace espalier::hub
