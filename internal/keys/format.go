package keys

import (
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"
)

// A key has the form prefix_id_secret_checksum. The prefix lets scanners for leaked secrets recognize it. The checksum, a
// CRC-32 of everything before it, lets a scanner or a worker reject a mistyped or invented key without a lookup. It is no
// protection against attackers, who can compute it as well. Base 62 has only word characters, so that a double click
// selects the whole key.
const (
	alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

	idLength = 8
	// 27 characters of base 62 have 160.7 bits.
	secretLength   = 27
	checksumLength = 6

	tailLength      = 1 + idLength + 1 + secretLength + 1 + checksumLength
	maxPrefixLength = 16
)

// DefaultPrefix begins every key unless another prefix is set.
const DefaultPrefix = "lim"

var prefixPattern = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// CheckPrefix validates the prefix of keys. See [Config].
func CheckPrefix(prefix string) error {
	if len(prefix) > maxPrefixLength || !prefixPattern.MatchString(prefix) {
		return fmt.Errorf("key prefix %.32q: want 1 to %d lower case letters and digits, in words joined by underscores, such as %s or acme_live",
			prefix, maxPrefixLength, DefaultPrefix)
	}
	return nil
}

// generate returns a new random key and its id.
func generate(prefix string) (text, id string) {
	id = random(idLength)
	body := prefix + "_" + id + "_" + random(secretLength)
	return body + "_" + checksum(body), id
}

// parse returns the id of a text that has the form of a key. Any valid prefix is accepted, so that keys stay valid if the
// configured prefix changes. A text that cannot be a key never reaches the store, which might not even accept it as text.
func parse(text string) (id string, ok bool) {
	cut := len(text) - tailLength
	if cut < 1 || CheckPrefix(text[:cut]) != nil {
		return "", false
	}
	parts := strings.Split(text[cut+1:], "_")
	if text[cut] != '_' || len(parts) != 3 || !IsID(parts[0]) || !isBase62(parts[1]) {
		return "", false
	}
	// A secret that is too long or too short leaves more or less than six characters for the checksum, which cannot be one.
	body := text[:len(text)-checksumLength-1]
	return parts[0], checksum(body) == parts[2]
}

// keyPattern matches what looks like a key, from its id on, and one that was cut in its secret.
var keyPattern = regexp.MustCompile(`(_[0-9A-Za-z]{8}_)[0-9A-Za-z]{16,27}(_[0-9A-Za-z]{1,6})?`)

// Mask replaces the secrets of what looks like a key in a text.
func Mask(text string) string { return keyPattern.ReplaceAllString(text, "$1…") }

// IsID reports whether a text has the form of an id.
func IsID(text string) bool {
	return len(text) == idLength && isBase62(text)
}

func isBase62(text string) bool { return strings.Trim(text, alphabet) == "" }

// checksum writes CRC-32 (IEEE) in base 62, most significant digit first.
func checksum(body string) string {
	var digits [checksumLength]byte
	sum := crc32.ChecksumIEEE([]byte(body))
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = alphabet[sum%62]
		sum /= 62
	}
	return string(digits[:])
}

// random returns n random characters. Bytes of 248 and above are skipped: 256 is not a multiple of 62, so otherwise the first
// characters of the alphabet would be more likely.
func random(n int) string {
	out := make([]byte, 0, n)
	buf := make([]byte, 2*n)
	for {
		_, _ = rand.Read(buf) // never fails
		for _, b := range buf {
			if b >= 248 {
				continue
			}
			if out = append(out, alphabet[b%62]); len(out) == n {
				return string(out)
			}
		}
	}
}
