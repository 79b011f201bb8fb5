// Package redact takes secrets out of texts that people or logs get to see.
package redact

import "regexp"

// The user, password or token of a URL, and of an address without a scheme.
var (
	urlSecret  = regexp.MustCompile(`://[^\s,"]*@`)
	hostSecret = regexp.MustCompile(`(^|[\s,"])[^\s,"/]*@`)
)

// URLs puts *** in the place of user, password and token of all URLs in a text, such as an error's. It need not be a valid
// URL: what cannot be read is quoted whole by net/url.
func URLs(text string) string {
	return hostSecret.ReplaceAllString(urlSecret.ReplaceAllString(text, "://***@"), "$1***@")
}
