package httplimit

import (
	"regexp"
	"strings"
	"time"
)

// A List of RFC 9651 whose members are Items. An inner list is none of [Draft]'s. The grammar is written out, since this package
// adds no module to those of its users.
const (
	sfBare = `(?:-?[0-9]{1,12}\.[0-9]{1,3}|-?[0-9]{1,15}` + // Decimal, Integer
		`|"(?:[ !#-\[\]-~]|\\["\\])*"` + // String
		"|[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*" + // Token
		`|:[0-9A-Za-z+/=]*:|\?[01]|@-?[0-9]{1,15}` + // Byte Sequence, Boolean, Date
		`|%"(?:[ !#$&-~]|%[0-9a-f]{2})*")` // Display String
	sfParameter = `; *([a-z*][a-z0-9_.*-]*)(?:=(` + sfBare + `))?`
	sfItem      = sfBare + `((?:` + sfParameter + `)*)`
)

var (
	sfList       = regexp.MustCompile(`^ *(?:` + sfItem + `(?:[ \t]*,[ \t]*` + sfItem + `)*[ \t]*)?$`)
	sfItems      = regexp.MustCompile(sfItem)
	sfParameters = regexp.MustCompile(sfParameter)
	sfWhole      = regexp.MustCompile(`^[0-9]{1,15}$`) // an Integer that is not negative
)

// maxField is more than the 16 limits of a decision need, and bounds what a server can have its clients do: net/http takes 10 MB of
// headers, for which the parser takes seconds.
const maxField = 8 << 10

// rateLimitItem is what one item of RateLimit says: that nothing is left, and t, if it has one.
type rateLimitItem struct {
	none, told bool
	t          time.Duration
}

// rateLimitItems reads the field, of one line or more. It gives none for a field that is too long, does not parse, or in which r is
// missing, or r or t is no Integer that is not negative. What could be read of such a field is not kept: it may be the limit that is over
// sooner, and would stand before an X-RateLimit-Reset that can be read.
func rateLimitItems(lines []string) (items []rateLimitItem) {
	field := strings.Join(lines, ", ")
	if len(field) > maxField || !sfList.MatchString(field) {
		return nil
	}
	for _, member := range sfItems.FindAllStringSubmatch(field, -1) {
		parameters := map[string]string{} // of a name that comes again, the last counts
		for _, p := range sfParameters.FindAllStringSubmatch(member[1], -1) {
			parameters[p[1]] = p[2]
		}
		r, t := parameters["r"], parameters["t"]
		_, told := parameters["t"]
		if !sfWhole.MatchString(r) || told && !sfWhole.MatchString(t) {
			return nil
		}
		item := rateLimitItem{none: strings.Trim(r, "0") == "", told: told}
		item.t, _ = seconds(t)
		items = append(items, item)
	}
	return items
}
