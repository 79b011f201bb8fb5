// Package zone loads time zones by their names.
package zone

import (
	"slices"
	"strings"
	"time"
)

// Load gives the zone that has a name of IANA's database, such as Europe/Berlin or UTC, and false where none has.
func Load(name string) (*time.Location, bool) {
	if !isName(name) {
		return nil, false
	}
	l, err := time.LoadLocation(name)
	return l, err == nil
}

// isName tells whether a name may be looked up. The names of zones are paths, so none is that could lead to another name of a zone, or
// to the zone of this machine; [time.LoadLocation] holds that none leads out of their folder. Nor are the folders with the same zones
// over again, of which those in right count leap seconds, which Unix time does not.
func isName(name string) bool {
	return name != "" && !strings.Contains(name, ".") && !strings.Contains(name, "//") &&
		!slices.Contains([]string{"Local", "localtime", "posixrules", "Factory"}, name) &&
		!strings.HasPrefix(name, "posix/") && !strings.HasPrefix(name, "right/")
}
