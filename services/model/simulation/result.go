package simulation

// Result is how a history ended.
type Result struct {
	// Violations are the properties that did not hold, each with what happened; none if all is well.
	Violations []string
	// Trace is what happened, line by line; Hash differs if that does.
	Trace []string
	Hash  uint64
	// Requests is how many requests there were, by class of client, verb and resource.
	Requests map[string]int
}
