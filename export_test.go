package limits

// ReadReply is readReply, for tests that need a limiter: it imports this package.
var ReadReply = readReply
