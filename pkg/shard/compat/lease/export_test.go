package lease

// EndBy makes locks that are made later call a function instead of ending the process; nil: as by default.
func EndBy(f func(error)) { exit = f }
