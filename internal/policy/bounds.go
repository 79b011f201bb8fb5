package policy

import (
	"fmt"
	"maps"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// Bounds of the texts of a request.
const (
	maxNameBytes      = 64
	maxAttributes     = 32
	maxAttributeBytes = 256
)

// Unprintable finds the first character that is not printable.
func Unprintable[T string | []byte](s T) (rune, bool) {
	c, at := unprintableAt(s)
	return c, at >= 0
}

// unprintableAt is [Unprintable] with the bytes before the character; -1 if there is none.
func unprintableAt[T string | []byte](s T) (rune, int) {
	for i := 0; i < len(s); {
		if c := s[i]; c >= ' ' && c <= '~' {
			i++
			continue
		}
		c, n := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
		if !unicode.IsPrint(c) || c == utf8.RuneError && n == 1 {
			return c, i
		}
		i += n
	}
	return 0, -1
}

// CheckText returns an error for a field of a request unless it has least to most bytes, whose characters are all
// printable. A space is printable; other white space and control characters are not.
func CheckText[T string | []byte](field string, s T, least, most int) error {
	if len(s) < least {
		return fmt.Errorf("%s is empty; want %d to %d bytes", field, least, most)
	}
	if len(s) > most {
		return fmt.Errorf("%s has %d bytes; want %d to %d", field, len(s), least, most)
	}
	if c, found := Unprintable(s); found {
		return fmt.Errorf("%s %s contains the unprintable character %U; want printable UTF-8", field, yamlfile.Quote(string(s)), c)
	}
	return nil
}

// CheckAttributeName returns an error for an attribute that a request must not have besides so many others.
func CheckAttributeName(name string, others int) error {
	if _, bad := Unprintable(name); bad || name == "" || len(name) > maxNameBytes {
		return fmt.Errorf("attribute name %s must be 1 to %d bytes of printable UTF-8", yamlfile.Quote(name), maxNameBytes)
	}
	if others >= maxAttributes {
		return fmt.Errorf("the request has more than %d attributes", maxAttributes)
	}
	return nil
}

// CheckAttributeValue returns an error for a value that an attribute must not have. The error does not quote the value, such
// as an e-mail address of which only a hash may be kept: errors are in logs and statistics.
func CheckAttributeValue(name, value string) error {
	if len(value) > maxAttributeBytes {
		return fmt.Errorf("attribute %s has %d bytes; want at most %d", name, len(value), maxAttributeBytes)
	}
	if c, at := unprintableAt(value); at >= 0 {
		return fmt.Errorf("attribute %s contains the unprintable character %U at byte %d; want printable UTF-8", name, c, at)
	}
	return nil
}

// check returns an error for a request that is refused because of its texts, whatever the policies are.
func (q *Question) check() error {
	for _, f := range []struct{ field, text string }{{"policy", q.Policy}, {"tier", q.Tier}} {
		if f.text == "" {
			continue
		}
		if err := CheckText(f.field, f.text, 1, maxNameBytes); err != nil {
			return err
		}
	}
	for n, name := range slices.Sorted(maps.Keys(q.Attributes)) {
		if err := CheckAttributeName(name, n); err != nil {
			return err
		}
		if err := CheckAttributeValue(name, q.Attributes[name]); err != nil {
			return err
		}
	}
	return nil
}
