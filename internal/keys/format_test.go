package keys

import (
	"math"
	"regexp"
	"strings"
	"testing"
)

func TestFormat(t *testing.T) {
	t.Parallel()
	text, id := generate("acme_live")
	if !regexp.MustCompile(`^acme_live_[0-9A-Za-z]{8}_[0-9A-Za-z]{27}_[0-9A-Za-z]{6}$`).MatchString(text) {
		t.Errorf("key %s", text)
	}
	if got, ok := parse(text); !ok || got != id {
		t.Errorf("parse = %s, %t; want %s", got, ok, id)
	}
	for text, want := range map[string]bool{id: true, id[1:]: false, id + "a": false, "": false, "_" + id[1:]: false} {
		if IsID(text) != want {
			t.Errorf("IsID(%q) = %t", text, !want)
		}
	}
	if bits := secretLength * math.Log2(float64(len(alphabet))); bits < 160 {
		t.Errorf("a secret has %.1f bits", bits)
	}
}

// TestChecksum compares the checksum with independent values, so that scanners can be written from the description. CRC-32 of
// "123456789" is 0xCBF43926 in every description of the algorithm.
func TestChecksum(t *testing.T) {
	t.Parallel()
	if got, want := checksum("123456789"), base62(0xCBF43926); got != want {
		t.Errorf("checksum = %s, want %s", got, want)
	}
	if got := checksum(""); got != "000000" {
		t.Errorf("checksum of nothing = %s", got)
	}
}

func base62(n uint64) (text string) {
	for range checksumLength {
		text = string(alphabet[n%62]) + text
		n /= 62
	}
	return text
}

// TestTypos changes, drops and doubles every character of a key in turn. No result is a key.
func TestTypos(t *testing.T) {
	t.Parallel()
	text, _ := generate(DefaultPrefix)
	for i := range text {
		other := "x"
		if text[i] == 'x' {
			other = "y"
		}
		for _, typo := range []string{text[:i] + other + text[i+1:], text[:i] + text[i+1:], text[:i] + text[i:i+1] + text[i:]} {
			if _, ok := parse(typo); ok && typo != text {
				t.Errorf("%s passes for %s", typo, text)
			}
		}
	}
	for _, bad := range []string{"", "_", "lim", strings.Repeat("_", 47), strings.Repeat("a", 1<<20), text + "\n", " " + text, text + text} {
		if _, ok := parse(bad); ok {
			t.Errorf("%.60q passes", bad)
		}
	}
}

// TestForgedKeysAreRejected: a text with a correct checksum, which anybody can compute, but with
// an id or secret of other characters or in another form, is not a key. PostgreSQL accepts neither
// U+0000 nor invalid UTF-8 in texts, so the lookup of such a key would be an error of the store.
func TestForgedKeysAreRejected(t *testing.T) {
	t.Parallel()
	text, id := generate(DefaultPrefix)
	secret := strings.Split(text, "_")[2]
	bodies := map[string]bool{
		"limx" + id + "_" + secret: false, "lim_" + id + "x" + secret: false, "lim_" + id + "x_" + secret[1:]: false, "Lim_" + id + "_" + secret: false,
		"l_" + id + "_" + secret: true, strings.Repeat("l", maxPrefixLength) + "_" + id + "_" + secret: true,
	}
	for _, c := range []string{"\x00", "\xff", "-", " ", "\n", "'"} {
		for _, body := range []string{
			"lim_" + c + id[1:] + "_" + secret, "lim_" + id[:3] + c + id[4:] + "_" + secret,
			"lim_" + id + "_" + secret[:9] + c + secret[10:], "lim_" + id + "_" + secret[1:] + c,
		} {
			bodies[body] = false
		}
	}
	for body, want := range bodies {
		if _, ok := parse(body + "_" + checksum(body)); ok != want {
			t.Errorf("%q passes for a key: %v", body, ok)
		}
	}
}

// TestRandomIsUniform checks that each character is drawn 62,000 times, within six standard
// deviations.
func TestRandomIsUniform(t *testing.T) {
	t.Parallel()
	const each = 62_000
	counts := map[rune]int{}
	for _, c := range random(each * len(alphabet)) {
		counts[c]++
	}
	for _, c := range alphabet {
		if off := math.Abs(float64(counts[c] - each)); off > 6*math.Sqrt(each) {
			t.Errorf("%c came %d times, want about %d", c, counts[c], each)
		}
	}
}

// TestMask: of a key in a message its id is left.
func TestMask(t *testing.T) {
	t.Parallel()
	key, id := generate("acme_live")
	secret := key[len("acme_live_")+idLength+1:]
	for text, want := range map[string]string{
		"window " + key + " is": "window acme_live_" + id + "_… is",
		key + key:               "acme_live_" + id + "_…acme_live_" + id + "_…",
		"\"" + strings.TrimSuffix(key, secret[secretLength:]) + "…\"": "\"acme_live_" + id + "_……\"",
		"attribute user_id is missing":                                "attribute user_id is missing",
		"":                                                            "",
	} {
		if got := Mask(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestPrefixes(t *testing.T) {
	t.Parallel()
	for prefix, ok := range map[string]bool{
		"lim": true, "a": true, "acme_live": true, "k8s": true, "abcdefghijklmnop": true,
		"_a": false, "a_": false, "a__b": false, "Lim": false, "1a": false, "a-b": false, "abcdefghijklmnopq": false, "ä": false,
	} {
		if err := CheckPrefix(prefix); (err == nil) != ok {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	text, _ := generate(DefaultPrefix)
	f.Add(text)
	f.Add("lim_00000000_000000000000000000000000000_000000")
	f.Fuzz(func(t *testing.T, text string) {
		id, ok := parse(text)
		if ok && (!IsID(id) || !strings.Contains(text, "_"+id+"_")) {
			t.Errorf("parse(%q) = %q", text, id)
		}
	})
}
