import select

instance = select.epoll()
once = select.EPOLLONESHOT
full = os.pipe()
os.write(full[1], b"1")
pair = socket.socketpair()
pair[1].send(b"2")
count = os.eventfd(3)
idle = os.pipe()
os.write(idle[1], b"3")
watched = [full[0], full[1], pair[0].fileno(), pair[1].fileno(), count, idle[0]]
for number in watched:
    instance.register(number, select.EPOLLIN | select.EPOLLOUT | once)
while instance.poll(0):
    pass
# Those that have not fired tell of what happens.
other = os.pipe()
os.write(other[1], b"4")
instance.register(other[0], select.EPOLLIN | select.EPOLLET)
# Nothing is to be read from it any more, when the program has taken that up.
os.read(idle[0], 1)
turn = 0


def answers():
    global turn
    turn += 1
    if turn == 1:
        instance.modify(idle[0], select.EPOLLIN | once)
        return {}
    said = {"at first": sorted(instance.poll(0.2)), "then": instance.poll(0)}
    os.write(idle[1], b"5")
    said["armed"] = instance.poll(0.2)
    for number in watched:
        instance.modify(number, select.EPOLLIN | select.EPOLLOUT | once)
    said["again"] = sorted(instance.poll(0.2))
    return said


answer(answers)
