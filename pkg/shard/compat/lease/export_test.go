package lease

// EndBy makes the lock call a function instead of ending the process.
func (l *LeaseLock) EndBy(exit func(error)) { l.exit = exit }
