// Package zone loads time zones by their names.
package zone

import (
	"slices"
	"strings"
	"time"
)

// maxName bounds the length of a name, in bytes. No zone has a longer one.
const maxName = 64

// Load gives the time zone with a name of the IANA database, such as Europe/Berlin or UTC. It is false
// if there is none.
func Load(name string) (*time.Location, bool) {
	if !isName(name) {
		return nil, false
	}
	l, err := time.LoadLocation(name)
	return l, err == nil
}

// isName reports whether a name may be looked up. Names are paths, so it excludes what leads out of
// the folder of zones, or to the zone of this machine. It also excludes the folders posix and right,
// which repeat all zones: those in right count leap seconds, which Unix time does not.
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
