// Package zone loads time zones by their names.
package zone

import (
	"slices"
	"strings"
	"time"
)

// maxName is more than any name has.
const maxName = 64

// Load gives the zone that has a name of IANA's database, such as Europe/Berlin or UTC, and false where none has.
func Load(name string) (*time.Location, bool) {
	if !isName(name) {
		return nil, false
	}
	l, err := time.LoadLocation(name)
	return l, err == nil
}

// isName tells whether a name may be looked up. The names of zones are paths, so nothing that could lead out of their
// folder, or to the zone of this machine, is. Nor are the folders with the same zones over again, of which those in right
// count leap seconds, which Unix time does not.
func isName(name string) bool {
	if name == "" || len(name) > maxName || name[0] == '/' || strings.Contains(name, "..") || strings.Contains(name, "//") ||
		slices.Contains([]string{"Local", "localtime", "posixrules", "Factory"}, name) ||
		strings.HasPrefix(name, "posix/") || strings.HasPrefix(name, "right/") {
		return false
	}
	for _, c := range []byte(name) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("/_+-", rune(c)) {
			return false
		}
	}
	return true
}
