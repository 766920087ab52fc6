"""Health: checks of real servers, what follows from their results, and telling the director of it.

`checks/` asks a server once; `state` decides (pure); `monitor` turns the loop; `hooks` runs what people want
run; `switch` tells the director, in its process or over its socket.
"""
