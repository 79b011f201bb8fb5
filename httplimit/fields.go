package httplimit

import (
	"regexp"
	"strings"
	"time"
)

// The grammar of a List (RFC 9651) whose members are Items; [Draft] has no inner lists. It is written out here so that this
// package does not depend on a module for it.
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
	sfUnsigned   = regexp.MustCompile(`^[0-9]{1,15}$`) // a non-negative Integer
)

// maxFieldBytes is the longest RateLimit field that is parsed. It is more than the 16 limits of a decision need. net/http
// accepts 10 MB of headers, and parsing that much would take seconds.
const maxFieldBytes = 8 << 10

// rateLimitItem is one item of a RateLimit field.
type rateLimitItem struct {
	exhausted bool          // r, what remains, is 0
	hasReset  bool          // t is there
	reset     time.Duration // t
}

// itemNames returns the bare items of a field of one or more lines, as they are written. It returns none if the field is too
// long or does not parse.
func itemNames(lines []string) map[string]bool {
	names, field := map[string]bool{}, strings.Join(lines, ", ")
	if field == "" || len(field) > maxFieldBytes || !sfList.MatchString(field) {
		return names
	}
	for _, member := range sfItems.FindAllStringSubmatch(field, -1) {
		names[strings.TrimSuffix(member[0], member[1])] = true
	}
	return names
}

// withoutResets returns a RateLimit field without the t of its items. A field that does not parse stays as it is: clients ignore
// all of it.
func withoutResets(field string) string {
	if len(field) > maxFieldBytes || !sfList.MatchString(field) {
		return field
	}
	return sfItems.ReplaceAllStringFunc(field, func(member string) string {
		parameters := sfItems.FindStringSubmatch(member)[1]
		return strings.TrimSuffix(member, parameters) + sfParameters.ReplaceAllStringFunc(parameters, func(p string) string {
			if sfParameters.FindStringSubmatch(p)[1] == "t" {
				return ""
			}
			return p
		})
	})
}

// rateLimitItems parses a RateLimit field of one or more lines. It returns no items if the field is too long or does not
// parse, or if any item lacks r or has an r or t that is not a non-negative Integer. The valid items of such a field are
// not used, because they may describe the limit that resets sooner and would take precedence over a valid
// X-RateLimit-Reset.
func rateLimitItems(lines []string) (items []rateLimitItem) {
	field := strings.Join(lines, ", ")
	if len(field) > maxFieldBytes || !sfList.MatchString(field) {
		return nil
	}
	for _, member := range sfItems.FindAllStringSubmatch(field, -1) {
		parameters := map[string]string{} // the last one of a name counts
		for _, p := range sfParameters.FindAllStringSubmatch(member[1], -1) {
			parameters[p[1]] = p[2]
		}
		r, t := parameters["r"], parameters["t"]
		_, hasReset := parameters["t"]
		if !sfUnsigned.MatchString(r) || hasReset && !sfUnsigned.MatchString(t) {
			return nil
		}
		item := rateLimitItem{exhausted: strings.Trim(r, "0") == "", hasReset: hasReset}
		item.reset, _ = seconds(t)
		items = append(items, item)
	}
	return items
}
