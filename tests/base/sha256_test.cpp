#include "base/sha256.h"

#include <doctest/doctest.h>

using namespace longreach;

TEST_CASE("SHA-256 and HMAC give the published digests") {
    // FIPS 180-4's examples and RFC 4231's cases 1, 2 and 6 (a key longer than a block).
    CHECK(hexadecimal(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hexadecimal(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hexadecimal(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    const auto mac = [](const std::string& key, std::string_view text) {
        return hexadecimal(hmac_sha256(key, text));
    };
    CHECK(mac(std::string(20, '\x0b'), "Hi There") ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(mac("Jefe", "what do ya want for nothing?") ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    CHECK(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    CHECK(same_digest("abc", "abc"));
    CHECK_FALSE(same_digest("abc", "abd"));
    CHECK_FALSE(same_digest("abc", "ab"));
    CHECK(random_bytes(32).size() == 32);
    CHECK(random_bytes(32) != random_bytes(32));
}
